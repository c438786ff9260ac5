"""A simulated prefill worker: the production service, engine and hand-over machine, wired as in a worker process."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from baton_engine.scheduling.engine_config import EngineConfig
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import CutLink, HandoverKey, Send, TransferConfig
from baton_kv_transfer.layout import Extent, source_extents
from baton_kv_transfer.prefill.records import DropPuts, Granted, PrefillAction, PrefillState, Put, Release, Report
from baton_kv_transfer.prefill.retargeting import Target
from baton_kv_transfer.transports.memory import MemoryWriter
from baton_kv_transfer.transports.seam import Write
from baton_testing.simulation.decode import SimDecode
from baton_testing.simulation.engine import SimEngine
from baton_testing.simulation.network import Connection, Dial, End, Party, Path
from baton_testing.simulation.process import SimProcess, require
from baton_testing.simulation.scenario import CONTEXT_TOKENS, Fault
from baton_testing.simulation.worker import LIMITS, SimWorker, WorkerWorld, no_metrics
from baton_wire.errors import UnfitPairError
from baton_wire.messages import codec
from baton_wire.messages.pair_link import FirstToken, PairHello, PairMessage
from baton_wire.messages.values import PairFingerprint, PeerRef, Reason, RequestKey, Role

PREFILL_BLOCK_TOKENS = 4
TRANSFER = TransferConfig(
    link_wait_s=2.0,
    early_s=2.0,
    pin_s=3.0,
    kept_s=1.5,
    closing_s=1.0,
    max_put_bytes=96,
    group_bytes=32,
    portion_bytes=32,
    quarantine_share=0.9,
    tick_s=0.25,
)


class SimPrefill(SimWorker):
    role = Role.PREFILL

    def __init__(self, world: WorkerWorld, name: str, epoch: bytes, address: str, fingerprint: PairFingerprint) -> None:
        super().__init__(world, name, epoch, address, fingerprint, PREFILL_BLOCK_TOKENS)
        parts, shape = world.parts, world.shape
        self.thread = self.add_loop()
        service = parts.prefill_service(LIMITS, no_metrics(), self.loop, lambda: self.now)
        config = EngineConfig(
            num_blocks=shape.prefill_blocks,
            block_tokens=PREFILL_BLOCK_TOKENS,
            max_slots=shape.slots,
            max_context_tokens=CONTEXT_TOKENS,
            max_step_tokens=shape.step_tokens,
            max_waiting=shape.max_waiting,
        )
        make = (parts.prefill_scheduler, parts.stepper, parts.runner)
        self.engine = SimEngine(
            self, config, *make, shape.ahead, service.on_events, service.on_cancel, service.on_layers
        )
        service.attach(self.engine)
        self.transfer = PrefillLinks(self)
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
        return self.engine.leftovers() or self.transfer.leftovers()


class PrefillLinks:
    """The transfer thread: carries out what `PrefillHandovers` decides, as `PrefillTransfer` does over sockets."""

    def __init__(self, worker: SimPrefill) -> None:
        self.worker = worker
        handovers = worker.world.parts.prefill_handovers(worker.engine.pool.geometry, TRANSFER)
        self.machine = worker.world.parts.keeper(handovers, TRANSFER)
        self.ends: dict[bytes, End] = {}
        self.writers: dict[bytes, MemoryWriter] = {}
        self._addresses: dict[bytes, str] = {}
        self._dials: dict[str, Dial] = {}
        self._opened: dict[HandoverKey, bytes] = {}
        self._unlinked: dict[HandoverKey, float] = {}
        self._unstarted: list[Put] = []
        self._drawn: set[HandoverKey] = set()
        self.errors_injected = self.errors_reported = 0
        self.fail_next_put = False
        worker.later(TRANSFER.tick_s, self._tick)

    def dial(self, address: str, path: Path) -> None:
        self._dials[address] = Dial(self.worker, path, address, _accept, self, _party)

    # From the service -------------------------------------------------------------------------------------------------

    def opened(self, of: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None:
        self._post(lambda: self._open(HandoverKey.of(of), peer, total_tokens, deadline_s))

    def retargeted(self, of: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None:
        key, target = HandoverKey.of(of), Target(HandoverKey(of.request, next_attempt), peer.epoch)
        self._post(lambda: self._retarget(key, target, peer, deadline_s))

    def computed(self, of: RequestKey, tokens: int, blocks: tuple[int, ...]) -> None:
        key = HandoverKey.of(of)
        self._post(lambda: self.act(self.machine.computed(key, tokens, blocks, self._now)))

    def computing(self, of: RequestKey, tokens: int, layers: int, blocks: tuple[int, ...]) -> None:
        key = HandoverKey.of(of)
        self._post(lambda: self.act(self.machine.computing(key, tokens, layers, blocks, self._now)))

    def first_tokens(self, of: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        key = HandoverKey.of(of)

        def drawn() -> None:
            self._drawn.add(key)
            self.act(self.machine.first_tokens(key, first_tokens, self._now))

        self._post(drawn)

    def cancelled(self, of: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None:
        key = HandoverKey.of(of)
        self._post(lambda: self.act(self.machine.cancelled(key, reason, detail, self._now)))

    @property
    def _now(self) -> float:
        return self.worker.now

    def _post(self, call: Callable[[], None]) -> None:
        self.worker.thread.call_soon_threadsafe(call)

    def _open(self, key: HandoverKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None:
        self._opened[key] = peer.epoch
        self.act(self.machine.opened(key, peer.epoch, total_tokens, deadline_s, self._now))
        self._find(peer)

    def _retarget(self, key: HandoverKey, target: Target, peer: PeerRef, deadline_s: float) -> None:
        if key in self._opened:
            self._opened[key] = peer.epoch
            self._unlinked.pop(key, None)
        self.worker.world.retargets += 1
        self.act(self.machine.retargeted(key, target, deadline_s, self._now))
        self._find(peer)

    def _find(self, peer: PeerRef) -> None:
        if peer.epoch in self.ends:
            return
        linked = [epoch for epoch, where in self._addresses.items() if where == peer.address.host]
        if any(epoch in self.ends for epoch in linked):
            self.act(self.machine.link_down(peer.epoch, Reason.PEER_LOST, "another process answers", self._now))
            return
        self._addresses[peer.epoch] = peer.address.host

    # Links ------------------------------------------------------------------------------------------------------------

    def received(self, end: End, frame: bytes) -> None:
        message = codec.decode(frame, PairMessage)
        if not isinstance(message, PairHello):
            self.act(self.machine.message(end.other.process.epoch, message, self._now))
            return
        gone = [e for e, where in self._addresses.items() if where == end.other.process.address and e != message.epoch]
        for epoch in gone:
            del self._addresses[epoch]
            if epoch not in self.ends:
                self.act(self.machine.link_down(epoch, Reason.PEER_LOST, "another process answers", self._now))
        try:
            self.worker.world.parts.require_fit(self.worker.fingerprint, message.fingerprint)
        except UnfitPairError as error:
            self.act(self.machine.link_down(message.epoch, Reason.UNFIT_PAIR, str(error), self._now))
            end.close(str(error))
            return
        self._up(end, message)

    def _up(self, end: End, hello: PairHello) -> None:
        if not end.other.is_up:  # data connections are taken only while the control link stands at the other side too
            end.close("data connection: refused")
            return
        decode = cast(SimDecode, end.other.process)
        self.ends[hello.epoch] = end
        self._addresses[hello.epoch] = decode.address
        self.writers[hello.epoch] = MemoryWriter(
            self.worker.epoch,
            decode.transfer.landing,
            lambda delay_s, call: self._carry(end, decode, delay_s, call),
            lambda: self.worker.world.delay(0.02),
            lambda detail: end.close(f"data connection: {detail}"),
        )
        facts = DecodePeer(hello.block_tokens, hello.landing_bytes)
        self.act(self.machine.link_up(hello.epoch, facts, self._now))

    def lost(self, end: End, detail: str) -> None:
        epoch = end.other.process.epoch
        if self.ends.get(epoch) is not end:
            return
        del self.ends[epoch]
        self.writers.pop(epoch).close(detail)
        self.act(self.machine.link_down(epoch, Reason.PEER_LOST, detail, self._now))

    def _carry(self, end: End, decode: SimDecode, delay_s: float, call: Callable[[], None]) -> None:
        """Bytes move while the sender lives and nothing is cut; where the receiver writes itself, only when it runs."""
        if delay_s == 0.0:  # the sender gave a write up: nothing of it travels
            self.worker.later(0.0, call)
            return
        path = end.connection.path
        held_s, path.hold_writes_s = path.hold_writes_s, 0.0
        if held_s:
            self.worker.world.count(Fault.LATE_WRITE)

        def arrive() -> None:
            if not self.worker.is_alive:
                return
            if path.is_cut:
                path.held.append((True, arrive))
            else:
                (self.worker if decode.transfer.landing.one_sided else decode).run(call)

        self.worker.world.heap.after(delay_s + held_s + path.slow_s, arrive)

    # Actions ----------------------------------------------------------------------------------------------------------

    def act(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            match action:
                case Send(peer, message):
                    self.worker.note(f"{type(message).__name__} {short(message)}")
                    if peer in self.ends:
                        self.ends[peer].send(codec.encode(message))
                case CutLink(peer, detail):
                    if peer in self.ends:
                        self.ends[peer].close(detail)
                case Put():
                    self._unstarted.append(action)
                    self.worker.later(0.0, lambda put=action: self._put(put))  # type: ignore[misc]
                case DropPuts(key):
                    for put in [put for put in self._unstarted if put.key == key]:
                        self._unstarted.remove(put)
                        self._put_failed(put, Reason.CANCELLED, "dropped before it began")
                case Granted(key):
                    self.worker.service.on_granted(key.request_key)  # type: ignore[attr-defined]
                case Release(key):
                    self.worker.note(f"release {key}")
                    require(key in self._opened, "I2", f"{key} is released twice, or was never opened")
                    del self._opened[key]
                    self.worker.service.on_release(key.request_key)  # type: ignore[attr-defined]
                case Report(key, reason, detail, failed, kept):
                    self.worker.note(f"report {key} {reason}{' kept' if kept else ''}")
                    self._reported(key, reason, detail)
                    attempt = failed or key.attempt
                    self.worker.service.on_report(key.request_key, reason, detail, attempt, kept)  # type: ignore[attr-defined]

    def _reported(self, key: HandoverKey, reason: Reason, detail: str) -> None:
        """I9: an error of one write ends the hand-over whose write it was, and no other."""
        self.errors_reported += reason is Reason.INTERNAL and not detail.startswith("rejected")
        is_own = self.errors_reported <= self.errors_injected
        require(is_own, "I9", f"{self.worker.name}: {key} ended with {detail}, which was no error of its own")

    def _put(self, put: Put) -> None:
        if put not in self._unstarted:
            return
        self._unstarted.remove(put)
        writer = self.writers.get(put.peer)
        if writer is None:
            self._put_failed(put, Reason.PEER_LOST, "the link is gone")
            return
        if self.fail_next_put:
            self.fail_next_put = False
            self.errors_injected += 1
            self.worker.world.count(Fault.SOURCE_ERROR)
            self._put_failed(put, Reason.INTERNAL, "the source raised")
            return
        pool, blocks = self.worker.engine.pool, self._blocks_of(put)
        generations = self._generations(blocks)
        if put.units.tokens == PREFILL_BLOCK_TOKENS:
            source = source_extents(pool.geometry, put.units)
            write = Write(put.transfer, pool.memory, tuple(source), put.landing)
        else:
            packed = memoryview(bytearray(put.length))
            pool.pack(put.units, packed)
            write = Write(put.transfer, packed, (Extent(0, len(packed)),), put.landing)
        checksums = pool.checksums(put.units)

        def done(detail: str | None) -> None:
            self.worker.run(lambda: self._put_ended(put, blocks, generations, checksums, detail))

        writer.write(write, done)

    def _put_ended(
        self, put: Put, blocks: tuple[int, ...], generations: list[int], checksums: bytes, detail: str | None
    ) -> None:
        now = self._generations(blocks)
        require(now == generations, "I5", f"{self.worker.name}: blocks of {put} changed hands while it was read")
        if detail is None:
            self.act(self.machine.put_done(put.key, put.put, checksums, self._now))
        else:
            self._put_failed(put, Reason.PEER_LOST, detail)

    def _put_failed(self, put: Put, reason: Reason, detail: str) -> None:
        self.act(self.machine.put_failed(put.key, put.put, reason, detail, self._now))

    def _blocks_of(self, put: Put) -> tuple[int, ...]:
        units, per_block = put.units, PREFILL_BLOCK_TOKENS // put.units.tokens
        return tuple(units.blocks[units.first // per_block : -(-units.end // per_block)])

    def _generations(self, blocks: tuple[int, ...]) -> list[int]:
        pool = self.worker.engine.scheduler.pool
        for block in blocks:
            require(pool.references(block) > 0, "I5", f"{self.worker.name}: block {block} is put and held by nobody")
        return [pool.generation(block) for block in blocks]

    def _tick(self) -> None:
        self.act(self.machine.tick(self._now))
        self.worker.later(TRANSFER.tick_s, self._tick)

    def check(self) -> None:
        for key, epoch in self._opened.items():
            if epoch in self.ends:
                self._unlinked.pop(key, None)
                continue
            awake_s = self.worker.awake_s
            alone_s = awake_s - self._unlinked.setdefault(key, awake_s)
            most_s = TRANSFER.link_wait_s + 2.5 + (TRANSFER.kept_s if self.machine.keeps(key) else 0.0)
            require(alone_s < most_s, "I3", f"{key} waits for a peer that is gone")
        for key in self._drawn & self._opened.keys():
            handover = self.machine._inner._handovers.get(self.machine._current(key))
            whole = handover is not None and handover.computed_tokens >= handover.total_tokens
            idle = whole and handover.state is PrefillState.SENDING and not handover.in_flight
            require(not idle, "I3", f"{key} is computed, drawn and put, but not sealed")

    def leftovers(self) -> str | None:
        stats = self.machine.stats()
        if sum(stats.by_state.values()) or stats.puts_in_flight or stats.early or self._opened:
            return f"{self.worker.name} transfer: {stats}, unreleased {list(map(str, self._opened))}"
        return None


def _accept(peer: SimProcess, connection: Connection) -> None:
    cast(SimDecode, peer).transfer.accept(connection)


def _party(peer: SimProcess) -> Party:
    return cast(SimDecode, peer).transfer


def short(message: PairMessage) -> str:
    request = getattr(message, "request", b"")
    return f"{int.from_bytes(request):x}"[:6] + f"/{getattr(message, 'attempt', 0)}"
