"""A simulated decode worker: the production service, engine, transfer and landing region in one process."""

from __future__ import annotations

from typing import Any

import msgspec

from baton_decode_worker.service import DecodeService
from baton_engine.memory.blocks import BlockState
from baton_kv_transfer.decode.peers import PrefillLink
from baton_kv_transfer.decode.ranks import DecodeRanks
from baton_kv_transfer.decode.records import DecodeAction, Scatter
from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import HandoverKey, Reservation, SendTo
from baton_kv_transfer.landing import LandingWindow, SpanState
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.seam import Transport
from baton_testing.engine.runners import VOCABULARY
from baton_testing.simulation.engine import SimEngine, engine_config
from baton_testing.simulation.process import Violation, require
from baton_testing.simulation.scenario import Fault
from baton_testing.simulation.streams import PORT, StreamNetwork
from baton_testing.simulation.transfers import KEYS, TRANSFER, Landing, Watch
from baton_testing.simulation.worker import LIMITS, SimWorker, WorkerWorld, no_metrics
from baton_wire.messages.pair_link import FirstToken, PairMessage, Seal
from baton_wire.messages.values import PairFingerprint, Reason, RequestKey, Role


class SimDecode(SimWorker):
    """Also the messages of its transfer, on the way to the service."""

    role = Role.DECODE

    def __init__(self, world: WorkerWorld, name: str, epoch: bytes, address: str, fingerprint: PairFingerprint) -> None:
        parts, shape = world.parts, world.shape
        super().__init__(world, name, epoch, address, fingerprint, shape.decode_block_tokens)
        self.thread = self.add_loop()
        service = parts.decode_service(LIMITS, no_metrics(), self.loop, lambda: self.now)
        config = engine_config(shape, shape.decode_blocks, shape.decode_block_tokens)
        make = (parts.decode_scheduler, parts.stepper, parts.runner)
        self.engine = SimEngine(self, config, *make, shape.ahead, service.on_events, service.on_cancel)
        service.attach(self.engine)
        self.service = service
        self.pair_network = StreamNetwork(world, self, self.thread)
        self.begin_decode(service)

    def begin_decode(self, service: DecodeService) -> None:
        """The side that KV lands on, once everything else is built."""
        self.decode_service = service
        self.expected: dict[HandoverKey, bytes] = {}
        self.decode_unlinked: dict[HandoverKey, float] = {}
        self.corrupt_next: list[float] = []
        self.fail_next_scatter = self.alter_next = False
        self.corrupted: set[HandoverKey] = set()
        self.unproven = False
        """A peer was lost with one-sided writes under way: some bytes may stay quarantined."""
        self.decode_transfer = service.transfer = WatchedDecodeTransfer(self)
        self.thread.create_task(self.decode_transfer.start())

    @property
    def watches(self) -> tuple[Watch, ...]:
        return (self.decode_transfer.watch,)

    @property
    def num_blocks(self) -> int:
        return self.engine.scheduler.config.num_blocks

    @property
    def landing(self) -> Landing:
        return self.decode_transfer.landing

    def proven_gone(self, epoch: bytes) -> None:
        self.thread.call_soon(self.decode_transfer.proven_gone, epoch)

    # The transfer's messages -----------------------------------------------------------------------------------------

    def on_landed(self, of: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        key = HandoverKey.of(of)
        self.note(f"landed {key}")
        epoch = self._ended(key)
        require(self.decode_transfer.fingerprints[epoch] == self.fingerprint, "I6", f"{key} came from another revision")
        require(key not in self.corrupted, "I4", f"{key} landed with bytes that were spoilt")
        self.decode_service.on_landed(of, self._altered(key, first_tokens))

    def _altered(self, key: HandoverKey, tokens: tuple[FirstToken, ...]) -> tuple[FirstToken, ...]:
        """Other ones, when that is planned, and only where the client has the right ones: else no check notices."""
        if not self.alter_next or any(token.finish for token in tokens) or not self.world.is_reported(key):
            return tokens
        self.alter_next = False
        self.world.count(Fault.OTHER_TOKEN)
        self.note(f"first tokens of {key} are altered")
        return tuple(msgspec.structs.replace(first, token=(first.token + 1) % VOCABULARY) for first in tokens)

    def on_failed(self, of: RequestKey, reason: Reason, detail: str) -> None:
        key = HandoverKey.of(of)
        self.note(f"failed {key} {reason} {detail}")
        self._ended(key)
        spoilt = reason is not Reason.KV_CORRUPT or key in self.corrupted
        require(spoilt, "I9", f"{key}: {detail}, but no fault spoilt it")
        self.decode_service.on_failed(of, reason, detail)

    def _ended(self, key: HandoverKey) -> bytes:
        require(key in self.expected, "I1", f"{key} ended twice, or was never expected")
        return self.expected.pop(key)

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.engine.check()
        self.check_decode()

    def check_decode(self) -> None:
        for key, epoch in self.expected.items():
            if epoch in self.decode_transfer.links:
                self.decode_unlinked.pop(key, None)
                continue
            alone_s = self.awake_s - self.decode_unlinked.setdefault(key, self.awake_s)
            require(alone_s < TRANSFER.link_wait_s + 1.5, "I3", f"{key} waits for a peer that is gone")
        if self.decode_transfer.has_acted:
            self.decode_transfer.has_acted = False
            landing = self.decode_transfer.machine.stats().landing
            held = sum(landing.by_state.values())
            require(landing.free_bytes + held == landing.total_bytes, "I2", f"{self.name}: {landing}")

    def leftovers(self) -> str | None:
        if self.service.open_requests:
            return f"{self.name} io: {self.service.open_requests} open requests"
        return self.decode_leftovers() or self.engine.leftovers()

    def decode_leftovers(self) -> str | None:
        if self.decode_service._awaited:
            return f"{self.name} io: reservations on their way for ever: {self.decode_service._awaited}"
        stats = self.decode_transfer.machine.stats()
        landing = stats.landing
        held = landing.total_bytes - landing.free_bytes
        allowed = landing.by_state[SpanState.QUARANTINED] if self.unproven else 0
        owed = stats.lingering and not self.unproven
        if sum(stats.by_state.values()) or held != allowed or owed or self.expected:
            return f"{self.name} transfer: {stats}, unended {list(map(str, self.expected))}"
        return None


class WatchedDecodeTransfer(DecodeTransfer):
    """The production transfer over simulated streams and memory; what it does is watched, and its bytes are spoilt."""

    def __init__(self, worker: SimDecode) -> None:
        parts, shape, geometry = worker.world.parts, worker.world.shape, worker.engine.pool.geometry
        self.worker = worker
        self.watch = Watch(worker)
        self.has_acted = True
        """Since the books were looked at."""
        self.fingerprints: dict[bytes, PairFingerprint] = {}
        self.deaf: set[PairLink] = set()
        """Links whose seals are lost."""
        self._numbers: dict[bytes, list[int]] = {}
        """The numbers of the links of each prefill worker."""
        self._generations: dict[tuple[HandoverKey, int], list[int]] = {}
        row = Transport("memory", lambda _: None, lambda parts: self._land(parts.region))  # type: ignore[arg-type,return-value]
        transfer_parts = TransferParts(
            epoch=worker.epoch,
            fingerprint=worker.fingerprint,
            geometry=geometry,
            keys=KEYS,
            config=TRANSFER,
            transports=[row],
            network=worker.pair_network,
        )
        memory = LandingMemory(shape.landing_bytes)
        super().__init__(transfer_parts, [worker.engine.pool], worker, memory, host=worker.address, port=PORT)
        machine = parts.decode_handovers(geometry, shape.landing_bytes, TRANSFER, one_sided=shape.one_sided)
        self._handovers = DecodeRanks(geometry, [machine], TRANSFER)

    def _land(self, region: memoryview) -> Landing:
        self.landing = Landing(region, self, one_sided=self.worker.world.shape.one_sided)
        self.landing.on_one_sided_write = self._one_sided_write
        return self.landing

    @property
    def machine(self) -> Any:
        return self._handovers

    @property
    def links(self) -> dict[bytes, PrefillLink]:
        return self._acceptor.links

    def expected(self, of: RequestKey, prefill_epoch: bytes, reservation: Reservation) -> None:
        def expect() -> None:
            key = HandoverKey.of(of)
            require(key not in self.worker.expected, "I2", f"{key} is expected twice")
            self.worker.expected[key] = prefill_epoch
            self.worker.decode_unlinked.pop(key, None)

        self.mailbox.post(expect)
        super().expected(of, prefill_epoch, reservation)

    def proven_gone(self, epoch: bytes) -> None:
        for link in self._numbers.pop(epoch, ()):
            self._act(self.machine.writes_ended(link, self._now()))

    # Links ------------------------------------------------------------------------------------------------------------

    def on_up(self, linked: PrefillLink) -> None:
        self.fingerprints[linked.epoch] = linked.hello.fingerprint
        self._numbers.setdefault(linked.epoch, []).append(linked.number)
        linked.link.__class__ = self.worker.world.parts.link
        linked.link.session.__class__ = self.worker.world.parts.session
        self.watch.up(linked.link, linked.epoch, self._path(linked))
        super().on_up(linked)

    def on_message(self, linked: PrefillLink, message: PairMessage) -> None:
        self.watch.got(linked.link, linked.epoch, message, self._path(linked))
        if linked.link in self.deaf and isinstance(message, Seal):
            self.worker.world.count(Fault.LOST_SEALS)
            return
        super().on_message(linked, message)

    def on_down(self, linked: PrefillLink, detail: str) -> None:
        self.worker.note(f"link from {linked.epoch.hex()[-4:]} ended: {detail}")
        self.worker.unproven = self.landing.one_sided
        self.watch.down(linked.link)
        super().on_down(linked, detail)

    def _path(self, linked: PrefillLink) -> Any:
        return self.worker.world.path_of(linked.epoch, self.worker.address)

    # Bytes ------------------------------------------------------------------------------------------------------------

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        if window.is_open:
            holder = self.machine.holder_of(Extent(window.offset, window.length))
            require(holder == peer, "I5", f"{self.worker.name}: a write into bytes of {holder!r} was let through")
        super().arrived(peer, window)

    def breached(self, peer: bytes, detail: str) -> None:
        if detail.startswith("refused"):
            raise Violation("I5", f"{self.worker.name} refused an honest peer's PUT: {detail}")
        super().breached(peer, detail)

    def _one_sided_write(self, peer: bytes, extent: Extent) -> None:
        holder = self.machine.holder_of(extent)
        require(holder == peer, "I5", f"a write of {peer.hex()[-4:]} landed in bytes of {holder!r}")

    def _act(self, actions: list[DecodeAction]) -> None:
        self.has_acted = True
        for action in actions:
            match action:
                case Scatter(key, units):
                    pool = self.worker.engine.scheduler.pool
                    self._generations[key, units.first] = [pool.generation(block) for block in units.blocks]
                case SendTo(_, message):
                    request = message.request.hex()[-6:]  # type: ignore[union-attr]
                    self.worker.note(f"{type(message).__name__} {request}/{message.attempt}")  # type: ignore[union-attr]
        super()._act(actions)

    def _scatter_now(self, scatter: Scatter) -> bytes:
        worker, units = self.worker, scatter.units
        generations = self._generations.pop((scatter.key, units.first))
        pool, tokens = worker.engine.scheduler.pool, worker.block_tokens
        for index in range(units.first * units.tokens // tokens, -(-units.end * units.tokens // tokens)):
            block = units.blocks[index]
            held = pool.generation(block) == generations[index] and pool.state(block) is BlockState.RESERVED
            require(held, "I5", f"{worker.name}: {scatter} into a block that is {pool.state(block).name}")
        if worker.fail_next_scatter:
            worker.fail_next_scatter = False
            worker.world.count(Fault.SCATTER_ERROR)
            raise RuntimeError("the scatter raised")
        if worker.corrupt_next:
            self._spoil(scatter, worker.corrupt_next.pop())
        return super()._scatter_now(scatter)

    def _spoil(self, scatter: Scatter, how: float) -> None:
        """Flip a bit, tear the end off, swap the halves, or put back what is somewhere else in the region."""
        region, start, length = self.landing.region, scatter.landing.offset, scatter.landing.length
        before = bytes(region[start : start + length])
        kind, half = int(how * 4), length // 2
        if kind == 0:
            region[start + int(how * 3_989) % length] ^= 1 << int(how * 7_919) % 8
        elif kind == 1:
            region[start + half : start + length] = bytes(length - half)
        elif kind == 2:
            region[start : start + length] = before[half:] + before[:half]
        else:
            other = int(how * 6_101) % (len(region) - length + 1)
            region[start : start + length] = bytes(region[other : other + length])
        if bytes(region[start : start + length]) != before:
            self.worker.world.count(Fault.CORRUPT)
            self.worker.note(f"spoilt {scatter.key}")
            self.worker.corrupted.add(scatter.key)
