"""A simulated prefill worker: the production service, engine and transfer, wired as in a worker process."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from baton_kv_transfer.handover import HandoverKey, SendTo
from baton_kv_transfer.loop_mailbox import posted
from baton_kv_transfer.prefill.peers import DecodeLink
from baton_kv_transfer.prefill.records import PrefillAction, PrefillState, Put, Release
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.seam import Transport
from baton_prefill_worker.service import PrefillService
from baton_testing.simulation.engine import SimEngine, engine_config
from baton_testing.simulation.process import require
from baton_testing.simulation.scenario import Fault
from baton_testing.simulation.streams import PORT, StreamNetwork
from baton_testing.simulation.transfers import KEYS, TRANSFER, Sender, Watch
from baton_testing.simulation.worker import LIMITS, SimWorker, WorkerWorld, no_metrics
from baton_wire.discovery import Endpoint
from baton_wire.kv_shape import Units
from baton_wire.messages.pair_link import Done, FirstToken, PairMessage, Reject, Seal
from baton_wire.messages.values import PairFingerprint, PeerRef, Reason, RequestKey, Role

PREFILL_BLOCK_TOKENS = 4
GIVEN_UP = (Reason.DEADLINE, Reason.CANCELLED)


class SimPrefill(SimWorker):
    """Also the messages of its transfer, on the way to the service."""

    role = Role.PREFILL

    def __init__(self, world: WorkerWorld, name: str, epoch: bytes, address: str, fingerprint: PairFingerprint) -> None:
        parts, shape = world.parts, world.shape
        super().__init__(world, name, epoch, address, fingerprint, PREFILL_BLOCK_TOKENS)
        self.thread = self.add_loop()
        limits = replace(LIMITS, keeps_answers=shape.keeps_answers)
        service = parts.prefill_service(limits, no_metrics(), self.loop, lambda: self.now)
        config = engine_config(shape, shape.prefill_blocks, PREFILL_BLOCK_TOKENS)
        make = (parts.prefill_scheduler, parts.stepper, parts.runner)
        self.engine = SimEngine(
            self, config, *make, shape.ahead, service.on_events, service.on_cancel, service.on_layers
        )
        service.attach(self.engine)
        self.service = service
        self.pair_network = StreamNetwork(world, self, self.thread)
        self.begin_prefill(service)

    def begin_prefill(self, service: PrefillService) -> None:
        """The side that hands over, once everything else is built."""
        self.prefill_service = service
        self.source = Source(self)
        self.opened: dict[HandoverKey, bytes] = {}
        self.prefill_unlinked: dict[HandoverKey, float] = {}
        self.errors_reported = 0
        self.prefill_transfer = service.transfer = WatchedPrefillTransfer(self)
        self.thread.create_task(self.prefill_transfer.start())

    @property
    def watches(self) -> tuple[Watch, ...]:
        return (self.prefill_transfer.watch,)

    @property
    def num_blocks(self) -> int:
        return self.engine.scheduler.config.num_blocks

    def discovered(self, addresses: Iterable[str]) -> None:
        endpoints = [Endpoint(address, PORT) for address in addresses]
        self.thread.call_soon(self.prefill_transfer.discovered, endpoints)

    # The transfer's messages -----------------------------------------------------------------------------------------

    def on_granted(self, of: RequestKey) -> None:
        self.prefill_service.on_granted(of)

    def on_release(self, of: RequestKey) -> None:
        key = HandoverKey.of(of)
        self.note(f"release {key}")
        require(key in self.opened or not self.is_alive, "I2", f"{key} is released twice, or was never opened")
        self.opened.pop(key, None)
        self.prefill_service.on_release(of)

    def on_report(self, of: RequestKey, reason: Reason, detail: str, failed_attempt: int, kept: bool) -> None:
        """I9: an error of one write ends the hand-over whose write it was, and no other."""
        key = HandoverKey.of(of)
        self.note(f"report {key} {reason}{' kept' if kept else ''}")
        self.errors_reported += reason is Reason.INTERNAL and not detail.startswith("rejected")
        is_own = self.errors_reported <= self.source.errors
        require(is_own, "I9", f"{self.name}: {key} ended with {detail}, which was no error of its own")
        self.prefill_service.on_report(of, reason, detail, failed_attempt, kept)

    # Checks -----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.engine.check()
        self.check_prefill()

    def check_prefill(self) -> None:
        self.prefill_transfer.verdicts.check(self.name, self.awake_s)
        machine, links = self.prefill_transfer.machine, self.prefill_transfer.links
        for key, epoch in self.opened.items():
            if epoch in links:
                self.prefill_unlinked.pop(key, None)
                continue
            alone_s = self.awake_s - self.prefill_unlinked.setdefault(key, self.awake_s)
            most_s = TRANSFER.link_wait_s + 2.5 + (TRANSFER.kept_s if machine.keeps(key) else 0.0)
            require(alone_s < most_s, "I3", f"{key} waits for a peer that is gone")
        for key in self.prefill_transfer.drawn & self.opened.keys():
            handover = machine._inner._handovers.get(machine._current(key))
            whole = handover is not None and handover.computed_tokens >= handover.total_tokens
            idle = whole and handover.state is PrefillState.SENDING and not handover.in_flight
            require(not idle, "I3", f"{key} is computed, drawn and put, but not sealed")

    def leftovers(self) -> str | None:
        if self.service.open_requests:
            return f"{self.name} io: {self.service.open_requests} open requests"
        return self.prefill_leftovers() or self.engine.leftovers()

    def prefill_leftovers(self) -> str | None:
        if self.prefill_service._held:
            return f"{self.name} io: prompts {list(map(str, self.prefill_service._held))} are over"
        stats = self.prefill_transfer.machine.stats()
        if sum(stats.by_state.values()) or stats.puts_in_flight or stats.unannounced_messages or self.opened:
            return f"{self.name} transfer: {stats}, unreleased {list(map(str, self.opened))}"
        return None


class Source:
    """The KV pool as the transfer reads it; one read raises when that is planned."""

    def __init__(self, worker: SimPrefill) -> None:
        self._worker, self._pool = worker, worker.engine.pool
        self.fail_next = False
        self.errors = 0

    def region(self) -> memoryview | None:
        return self._pool.region()

    def pack(self, units: Units, out: memoryview) -> None:
        self._pool.pack(units, out)

    def checksums(self, units: Units) -> bytes:
        if self.fail_next:
            self.fail_next = False
            self.errors += 1
            self._worker.world.count(Fault.SOURCE_ERROR)
            raise RuntimeError("the source raised")
        return self._pool.checksums(units)


def unposted(method: Any) -> Any:
    """The body of a `posted` method, for a caller in the loop: one turn of it, as in production."""
    return method.__wrapped__


class WatchedPrefillTransfer(PrefillTransfer):
    """The production transfer over simulated streams and memory; what it does is watched."""

    def __init__(self, worker: SimPrefill) -> None:
        parts, geometry = worker.world.parts, worker.engine.pool.geometry
        self.worker = worker
        self.watch = Watch(worker)
        self.verdicts = Verdicts()
        self.drawn: set[HandoverKey] = set()
        self._generations: dict[tuple[HandoverKey, int], list[int]] = {}
        transfer_parts = TransferParts(
            epoch=worker.epoch,
            fingerprint=worker.fingerprint,
            geometry=geometry,
            keys=KEYS,
            config=TRANSFER,
            transports=[Transport("memory", lambda _: Sender(worker, worker.thread), lambda _: None)],  # type: ignore[arg-type,return-value]
            network=worker.pair_network,
        )
        super().__init__(transfer_parts, [worker.source], worker)
        self._handovers = parts.keeper(parts.prefill_handovers(geometry, TRANSFER), TRANSFER)

    @property
    def machine(self) -> Any:
        return self._handovers

    @property
    def links(self) -> dict[bytes, DecodeLink]:
        return self._dialler.links

    # From the service -------------------------------------------------------------------------------------------------

    @posted
    def opened(self, of: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None:
        key = HandoverKey.of(of)
        self.worker.opened[key] = peer.epoch
        self.worker.prefill_unlinked.pop(key, None)
        unposted(PrefillTransfer.opened)(self, of, peer, total_tokens, deadline_s)

    @posted
    def retargeted(self, of: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None:
        key = HandoverKey.of(of)
        if key in self.worker.opened:
            self.worker.opened[key] = peer.epoch
            self.worker.prefill_unlinked.pop(key, None)
        self.worker.world.retargets += 1
        unposted(PrefillTransfer.retargeted)(self, of, next_attempt, peer, deadline_s)

    def first_tokens(self, of: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        super().first_tokens(of, first_tokens)
        self.mailbox.post(lambda: self.drawn.add(HandoverKey.of(of)))

    # Links ------------------------------------------------------------------------------------------------------------

    def on_up(self, linked: DecodeLink) -> None:
        linked.link.__class__ = self.worker.world.parts.link
        linked.link.session.__class__ = self.worker.world.parts.session
        self.watch.up(linked.link, linked.epoch, self._path(linked))
        super().on_up(linked)

    def on_message(self, linked: DecodeLink, message: PairMessage) -> None:
        self.watch.got(linked.link, linked.epoch, message, self._path(linked))
        if isinstance(message, Done) or (isinstance(message, Reject) and message.reason not in GIVEN_UP):
            self.verdicts.came(linked.epoch, message.request)
        super().on_message(linked, message)

    def on_down(self, linked: DecodeLink, detail: str) -> None:
        self.worker.note(f"link to {linked.address.host} ended: {detail}")
        self.watch.down(linked.link)
        self.verdicts.down(linked.epoch)
        super().on_down(linked, detail)

    def _path(self, linked: DecodeLink) -> Any:
        return self.worker.world.path(self.worker.address, linked.address.host)

    # Actions ----------------------------------------------------------------------------------------------------------

    def _act(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            match action:
                case Put(key, _, put):
                    self._generations[key, put] = self._held(action)
                case SendTo(peer, message):
                    self.worker.note(f"{type(message).__name__} {short(message)}")
                    if isinstance(message, Seal):
                        self.verdicts.awaited(peer, message.request, self.worker.awake_s)
                case Release(key):
                    self.verdicts.released(key.request, self.worker.awake_s)
        super()._act(actions)

    def on_put_done(self, put: Put, checksums: bytes) -> None:
        self._look_at(put)
        super().on_put_done(put, checksums)

    def on_put_failed(self, put: Put, reason: Reason, detail: str) -> None:
        self._look_at(put)
        super().on_put_failed(put, reason, detail)

    def _look_at(self, put: Put) -> None:
        before = self._generations.pop((put.key, put.put))
        if self.worker.is_alive:
            same = self._held(put) == before
            require(same, "I5", f"{self.worker.name}: blocks of {put} changed hands while it was read")

    def _held(self, put: Put) -> list[int]:
        pool, units = self.worker.engine.scheduler.pool, put.units
        per_block = PREFILL_BLOCK_TOKENS // units.tokens
        blocks = units.blocks[units.first // per_block : -(-units.end // per_block)]
        for block in blocks:
            require(pool.references(block) > 0, "I5", f"{self.worker.name}: block {block} is put and not held")
        return [pool.generation(block) for block in blocks]


class Verdicts:
    """I3 of a pair: hand-overs that are sealed and get no verdict, one after the other, do not go on for ever."""

    def __init__(self) -> None:
        self._awaited: dict[bytes, tuple[bytes, float]] = {}
        self._missing: dict[bytes, list[float]] = {}

    def awaited(self, peer: bytes, request: bytes, now: float) -> None:
        self._awaited[request] = peer, now

    def came(self, peer: bytes, request: bytes) -> None:
        self._awaited.pop(request, None)
        self._missing.pop(peer, None)

    def released(self, request: bytes, now: float) -> None:
        peer, since_s = self._awaited.pop(request, (b"", now))
        if now - since_s >= TRANSFER.liveness.dead_s:
            self._missing.setdefault(peer, []).append(now)

    def down(self, peer: bytes) -> None:
        self._missing.pop(peer, None)
        self._awaited = {request: known for request, known in self._awaited.items() if known[0] != peer}

    def check(self, name: str, now: float) -> None:
        for times in self._missing.values():
            kept_s = now - times[1] if len(times) > 1 else 0.0
            require(kept_s < 1.0, "I3", f"{name} keeps a link over which {len(times)} hand-overs got no verdict")


def short(message: PairMessage) -> str:
    request = getattr(message, "request", b"")
    return f"{int.from_bytes(request):x}"[:6] + f"/{getattr(message, 'attempt', 0)}"
