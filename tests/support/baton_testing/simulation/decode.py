"""A simulated decode worker: the production service, engine, hand-over machine and landing region in one process."""

from __future__ import annotations

from collections.abc import Callable

from baton_engine.memory.blocks import BlockState
from baton_engine.scheduling.engine_config import EngineConfig
from baton_kv_transfer.decode.records import DecodeAction, Failed, Landed, Scatter
from baton_kv_transfer.handover import CutLink, HandoverKey, Send, TransferConfig
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow, SpanState
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.transports.memory import MemoryLanding
from baton_testing.simulation.engine import SimEngine
from baton_testing.simulation.network import Connection, End
from baton_testing.simulation.process import Violation, require
from baton_testing.simulation.scenario import CONTEXT_TOKENS, Fault
from baton_testing.simulation.worker import LIMITS, SimWorker, WorkerWorld, no_metrics
from baton_wire.errors import UnfitPairError
from baton_wire.messages import codec
from baton_wire.messages.pair_link import PairHello, PairMessage
from baton_wire.messages.values import PairFingerprint, Reason, RequestKey, Role

TRANSFER = TransferConfig(
    link_wait_s=2.0,
    early_s=2.0,
    pin_s=3.0,
    closing_s=1.0,
    max_put_bytes=96,
    group_bytes=32,
    quarantine_share=0.9,
    tick_s=0.25,
)


class SimDecode(SimWorker):
    role = Role.DECODE

    def __init__(self, world: WorkerWorld, name: str, epoch: bytes, address: str, fingerprint: PairFingerprint) -> None:
        parts, shape = world.parts, world.shape
        super().__init__(world, name, epoch, address, fingerprint, shape.decode_block_tokens)
        self.thread = self.add_loop()
        service = parts.decode_service(LIMITS, no_metrics(), self.loop, lambda: self.now)
        config = EngineConfig(
            num_blocks=shape.decode_blocks,
            block_tokens=shape.decode_block_tokens,
            max_slots=shape.slots,
            max_context_tokens=CONTEXT_TOKENS,
            max_step_tokens=shape.step_tokens,
            max_waiting=shape.max_waiting,
        )
        make = (parts.decode_scheduler, parts.stepper, parts.runner)
        self.engine = SimEngine(self, config, *make, shape.ahead, service.on_events, service.on_cancel)
        service.attach(self.engine)
        self.transfer = DecodeLinks(self)
        service.transfer = self.transfer
        self.service = service

    @property
    def num_blocks(self) -> int:
        return self.engine.scheduler.config.num_blocks

    def check(self) -> None:
        self.engine.check()
        self.transfer.check()

    def leftovers(self) -> str | None:
        if self.service.open_requests:
            return f"{self.name} io: {self.service.open_requests} open requests"
        if self.service._awaited:  # type: ignore[attr-defined]
            return f"{self.name} io: reservations on their way for ever: {self.service._awaited}"  # type: ignore[attr-defined]
        return self.engine.leftovers() or self.transfer.leftovers()


class DecodeLinks:
    """The transfer thread: carries out what `DecodeHandovers` decides, as `DecodeTransfer` does over sockets."""

    def __init__(self, worker: SimDecode) -> None:
        self.worker = worker
        parts, shape = worker.world.parts, worker.world.shape
        self.machine = parts.decode_handovers(
            worker.engine.pool.geometry, shape.landing_bytes, TRANSFER, one_sided=shape.one_sided
        )
        self.region = bytearray(self.machine.landing_bytes)
        self.landing = MemoryLanding(memoryview(self.region), self, one_sided=shape.one_sided)
        self.landing.on_one_sided_write = self._one_sided_write
        self.ends: dict[bytes, End] = {}
        self._links: list[bytes] = []
        """Whose each link was, in order."""
        self._fingerprints: dict[bytes, PairFingerprint] = {}
        self._expected: dict[HandoverKey, bytes] = {}
        self._unlinked: dict[HandoverKey, float] = {}
        self.corrupt_next: list[float] = []
        self.fail_next_scatter = False
        self.corrupted: set[HandoverKey] = set()
        self.unproven = False
        """A peer was lost with one-sided writes under way: some bytes may stay quarantined."""
        worker.later(TRANSFER.tick_s, self._tick)

    # From the service -------------------------------------------------------------------------------------------------

    def queued(self, of: RequestKey, prefill_epoch: bytes, position: int, deadline_s: float) -> None:
        key = HandoverKey.of(of)
        self._post(lambda: self.act(self.machine.queued(key, prefill_epoch, position, deadline_s, self._now)))

    def expected(
        self,
        of: RequestKey,
        prefill_epoch: bytes,
        total_tokens: int,
        cached_tokens: int,
        blocks: tuple[int, ...],
        choices: tuple[int, ...],
        deadline_s: float,
    ) -> None:
        key = HandoverKey.of(of)
        facts = (total_tokens, cached_tokens, blocks, choices, deadline_s)

        def expect() -> None:
            require(key not in self._expected, "I2", f"{key} is expected twice")
            self._expected[key] = prefill_epoch
            self.act(self.machine.expected(key, prefill_epoch, *facts, self._now))

        self._post(expect)

    def refused(self, of: RequestKey, prefill_epoch: bytes, reason: Reason, detail: str = "") -> None:
        key = HandoverKey.of(of)
        self._post(lambda: self.act(self.machine.refused(key, prefill_epoch, reason, detail, self._now)))

    def cancelled(self, of: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None:
        key = HandoverKey.of(of)
        self._post(lambda: self.act(self.machine.cancelled(key, reason, detail, self._now)))

    @property
    def _now(self) -> float:
        return self.worker.now

    def _post(self, call: Callable[[], None]) -> None:
        self.worker.thread.call_soon_threadsafe(call)

    # Links ------------------------------------------------------------------------------------------------------------

    def accept(self, connection: Connection) -> None:
        end, peer = connection.acceptor, connection.dialler.process
        worker = self.worker
        fingerprint = peer.fingerprint  # type: ignore[attr-defined]
        hello = PairHello(
            role=Role.DECODE,
            epoch=worker.epoch,
            fingerprint=worker.fingerprint,
            block_tokens=worker.block_tokens,
            tensor_parallel=1,
            landing_bytes=self.machine.landing_bytes,
            transports=("memory",),
            descriptor=b"",
        )
        end.send(codec.encode(hello))
        try:
            worker.world.parts.require_fit(fingerprint, worker.fingerprint)
        except UnfitPairError as error:
            end.close(str(error))
            return
        before = self.ends.get(peer.epoch)
        if before is not None:
            before.close("replaced by a new link of the same process")
        self.ends[peer.epoch] = end
        self._fingerprints[peer.epoch] = fingerprint
        self._links.append(peer.epoch)
        self.act(self.machine.link_up(peer.epoch, peer.block_tokens, self._now, link=len(self._links)))  # type: ignore[attr-defined]

    def received(self, end: End, frame: bytes) -> None:
        message = codec.decode(frame, PairMessage)
        self.act(self.machine.message(end.other.process.epoch, message, self._now))

    def lost(self, end: End, detail: str) -> None:
        epoch = end.other.process.epoch
        if self.ends.get(epoch) is not end:
            return
        del self.ends[epoch]
        self.unproven = self.landing.one_sided
        self.landing.drop(epoch)
        self.act(self.machine.link_down(epoch, detail, self._now))

    def proven_gone(self, epoch: bytes) -> None:
        for link in [link for link, each in enumerate(self._links, 1) if each == epoch]:
            self.act(self.machine.writes_ended(link, self._now))

    # The landing side's guard -----------------------------------------------------------------------------------------

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        claim: LandingWindow | ClaimRefusal = self.machine.claim(peer, transfer, offset, length)
        return claim

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        if window.is_open:
            holder = self.machine.holder_of(Extent(window.offset, window.length))
            require(holder == peer, "I5", f"{self.worker.name}: a write into bytes of {holder!r} was let through")
        self.act(self.machine.arrived(window, self._now))

    def breached(self, peer: bytes, detail: str) -> None:
        raise Violation("I5", f"{self.worker.name} refused an honest peer's PUT: {detail}")

    def _one_sided_write(self, peer: bytes, extent: Extent) -> None:
        holder = self.machine.holder_of(extent)
        require(holder == peer, "I5", f"a write of {peer.hex()[-4:]} landed in bytes of {holder!r}")

    # Actions ----------------------------------------------------------------------------------------------------------

    def act(self, actions: list[DecodeAction]) -> None:
        worker = self.worker
        for action in actions:
            match action:
                case Send(peer, message):
                    worker.note(f"{type(message).__name__} {message.request.hex()[-6:]}/{message.attempt}")  # type: ignore[union-attr]
                    if peer in self.ends:
                        self.ends[peer].send(codec.encode(message))
                case CutLink(peer, detail):
                    if peer in self.ends:
                        self.ends[peer].close(detail)
                case Scatter():
                    generations = self._held(action)
                    worker.later(
                        worker.world.delay(0.03),
                        lambda scatter=action, generations=generations: self._scatter(scatter, generations),  # type: ignore[misc]
                    )
                case Landed(key, first_tokens):
                    worker.note(f"landed {key}")
                    epoch = self._end(key)
                    require(self._fingerprints[epoch] == worker.fingerprint, "I6", f"{key} came from another revision")
                    require(key not in self.corrupted, "I4", f"{key} landed with bytes that were spoilt")
                    worker.service.on_landed(key.request_key, first_tokens)  # type: ignore[attr-defined]
                case Failed(key, reason, detail):
                    worker.note(f"failed {key} {reason} {detail}")
                    self._end(key)
                    spoilt = reason is not Reason.KV_CORRUPT or key in self.corrupted
                    require(spoilt, "I9", f"{key}: {detail}, but nobody spoilt it")
                    worker.service.on_failed(key.request_key, reason, detail)  # type: ignore[attr-defined]

    def _end(self, key: HandoverKey) -> bytes:
        require(key in self._expected, "I1", f"{key} ended twice, or was never expected")
        return self._expected.pop(key)

    def _held(self, scatter: Scatter) -> list[int]:
        pool = self.worker.engine.scheduler.pool
        return [pool.generation(block) for block in scatter.units.blocks]

    def _scatter(self, scatter: Scatter, generations: list[int]) -> None:
        pool = self.worker.engine.scheduler.pool
        touched = self._touched(scatter)
        for index in touched:
            block = scatter.units.blocks[index]
            held = pool.generation(block) == generations[index] and pool.state(block) is BlockState.RESERVED
            require(held, "I5", f"{self.worker.name}: {scatter} into a block that is {pool.state(block).name}")
        if self.fail_next_scatter:
            self.fail_next_scatter = False
            self.worker.world.count(Fault.SCATTER_ERROR)
            self.act(self.machine.scatter_failed(scatter.key, scatter.units.first, "raised", self._now))
            return
        if self.corrupt_next:
            self._spoil(scatter, self.corrupt_next.pop())
        stream = memoryview(self.region)[scatter.landing.offset : scatter.landing.end]
        sums = self.worker.engine.pool.scatter(stream, scatter.units)
        self.act(self.machine.scattered(scatter.key, scatter.units.first, sums, self._now))

    def _touched(self, scatter: Scatter) -> range:
        tokens = self.worker.block_tokens
        units = scatter.units
        return range(units.first * units.tokens // tokens, -(-units.end * units.tokens // tokens))

    def _spoil(self, scatter: Scatter, how: float) -> None:
        """Flip a bit, tear the end off, swap the halves, or put back what is somewhere else in the region."""
        start, length = scatter.landing.offset, scatter.landing.length
        before = bytes(self.region[start : start + length])
        kind, half = int(how * 4), length // 2
        if kind == 0:
            self.region[start + int(how * 3_989) % length] ^= 1 << int(how * 7_919) % 8
        elif kind == 1:
            self.region[start + half : start + length] = bytes(length - half)
        elif kind == 2:
            self.region[start : start + length] = before[half:] + before[:half]
        else:
            other = int(how * 6_101) % (len(self.region) - length + 1)
            self.region[start : start + length] = self.region[other : other + length]
        if bytes(self.region[start : start + length]) != before:
            self.worker.world.count(Fault.CORRUPT)
            self.worker.note(f"spoilt {scatter.key}")
            self.corrupted.add(scatter.key)

    def _tick(self) -> None:
        self.act(self.machine.tick(self._now))
        self.worker.later(TRANSFER.tick_s, self._tick)

    def check(self) -> None:
        stats = self.machine.stats()
        landing = stats.landing
        held = sum(landing.by_state.values())
        for key, epoch in self._expected.items():
            if epoch in self.ends:
                self._unlinked.pop(key, None)
                continue
            awake_s = self.worker.awake_s
            alone_s = awake_s - self._unlinked.setdefault(key, awake_s)
            require(alone_s < TRANSFER.link_wait_s + 1.5, "I3", f"{key} waits for a peer that is gone")
        require(landing.free_bytes + held == landing.total_bytes, "I2", f"{self.worker.name}: {landing}")

    def leftovers(self) -> str | None:
        stats = self.machine.stats()
        landing = stats.landing
        held = landing.total_bytes - landing.free_bytes
        allowed = landing.by_state[SpanState.QUARANTINED] if self.unproven else 0
        owed = stats.lingering and not self.unproven
        if sum(stats.by_state.values()) or held != allowed or owed or self._expected:
            return f"{self.worker.name} transfer: {stats}, unended {list(map(str, self._expected))}"
        return None
