"""The worker processes of the hand-over simulation: a production machine each, with played engine, pool and carrier."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from baton_kv_transfer.decode_records import DecodeAction, Failed, Landed, Scatter
from baton_kv_transfer.handover import CutLink, HandoverKey, Send, TransferConfig
from baton_kv_transfer.handover_decode import DecodeHandovers
from baton_kv_transfer.handover_prefill import PrefillHandovers
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent, KvGeometry, source_extents
from baton_kv_transfer.memory import MemoryLanding, MemoryWriter
from baton_kv_transfer.prefill_records import DropPuts, PrefillAction, Put, Release, Report
from baton_kv_transfer.transport import Write
from baton_kv_transfer.wire.pair_link import FirstToken, PairMessage
from baton_kv_transfer.wire.values import Reason
from baton_testing.event_heap import EventHeap
from baton_testing.kv_transfer import FakePool

CONFIG = TransferConfig(
    link_wait_s=2.0,
    early_s=3.0,
    pin_s=4.0,
    closing_s=1.0,
    max_put_bytes=256,
    group_bytes=64,
    quarantine_share=0.9,
    tick_s=0.25,
)
PREFILL_GEOMETRY = KvGeometry(layers=2, kv_heads=1, head_dim=1, element_bytes=4, block_tokens=4)


@dataclass(slots=True)
class Request:
    key: HandoverKey
    prefill: bytes
    decode: bytes
    tokens: int
    cached_units: int
    choices: tuple[int, ...]
    finishes: bool
    deadline_s: float
    source: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    kv: list[bytes] = field(default_factory=list)
    final: dict[int, bytes] = field(default_factory=dict)
    """What each block of `source` will hold once all is computed."""
    cancelled: bool = False
    first_tokens: tuple[FirstToken, ...] = ()

    def expected_tokens(self) -> list[bytes]:
        return self.kv[self.cached_units * 4 :]


@dataclass(slots=True)
class _Blocks:
    """Whose block is whose."""

    free: list[int]
    owner: dict[int, HandoverKey] = field(default_factory=dict)

    def take(self, count: int, key: HandoverKey) -> tuple[int, ...] | None:
        if count > len(self.free):
            return None
        taken = tuple(self.free.pop() for _ in range(count))
        self.owner.update(dict.fromkeys(taken, key))
        return taken

    def give_back(self, key: HandoverKey) -> list[int]:
        mine = [block for block, owner in self.owner.items() if owner == key]
        for block in mine:
            del self.owner[block]
        self.free[:0] = mine
        return mine


@dataclass(frozen=True, slots=True)
class Faults:
    """How hard the world is."""

    cancel: float = 0.25
    link_cuts: int = 2
    deaths: int = 1
    corrupt: float = 0.0
    slow_writes: float = 0.05
    message_delay_s: float = 0.02
    one_sided: bool = False


class Surroundings(Protocol):
    """What a process sees of the world."""

    heap: EventHeap
    faults: Faults
    requests: dict[HandoverKey, Request]
    corrupted: set[HandoverKey]
    make_prefill: Callable[..., PrefillHandovers]
    make_decode: Callable[..., DecodeHandovers]

    def delay(self, most_s: float) -> float: ...

    def chance(self, share: float) -> bool: ...

    def note(self, who: str, action: object) -> None: ...

    def send(self, sender: bytes, receiver: bytes, message: PairMessage) -> None: ...

    def cut(self, one: bytes, other: bytes) -> None: ...

    def failed(self, key: HandoverKey, reason: Reason) -> None: ...

    def landed(self, key: HandoverKey) -> None: ...


class SimPrefill:
    """One prefill process: machine, pool, the writers it holds."""

    def __init__(self, world: Surroundings, name: str, epoch: bytes) -> None:
        self.world, self.name, self.epoch = world, name, epoch
        self.machine = world.make_prefill(PREFILL_GEOMETRY, CONFIG)
        self.pool = FakePool(PREFILL_GEOMETRY, 24)
        self.pool.random_bytes = world.heap.random.randbytes
        self.blocks = _Blocks(list(range(24)))
        self.writers: dict[bytes, MemoryWriter] = {}
        self.alive = True
        self.opened: set[HandoverKey] = set()
        self.released: set[HandoverKey] = set()
        self.unstarted: list[Put] = []
        self.later(CONFIG.tick_s, self._tick)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.world.heap.after(delay_s, lambda: call() if self.alive else None)

    def _tick(self) -> None:
        self.act(self.machine.tick(self.world.heap.now))
        self.later(CONFIG.tick_s, self._tick)

    def act(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            self.world.note(self.name, action)
            match action:
                case Send(peer, message):
                    self.world.send(self.epoch, peer, message)
                case CutLink(peer):
                    self.world.cut(self.epoch, peer)
                case Put():
                    self.unstarted.append(action)
                    self.later(self.world.delay(0.02), lambda put=action: self._start(put))  # type: ignore[misc]
                case DropPuts(key):
                    for put in [put for put in self.unstarted if put.key == key]:
                        self.unstarted.remove(put)
                        self._failed(put, Reason.CANCELLED, "dropped")
                case Release(key):
                    self._release(key)
                case Report(key, reason):
                    assert key in self.opened - self.released, f"{key} is reported when it is not open"
                    assert reason not in (Reason.CANCELLED, Reason.FINISHED)
                    self.world.failed(key, reason)

    def _release(self, key: HandoverKey) -> None:
        assert key in self.opened, f"{key} is released without having been opened"
        assert key not in self.released, f"{key} is released twice"
        self.released.add(key)
        self.pool.fill(self.blocks.give_back(key))  # somebody else's KV, at once

    def _start(self, put: Put) -> None:
        if put not in self.unstarted:
            return
        self.unstarted.remove(put)
        writer = self.writers.get(put.peer)
        if writer is None:
            self._failed(put, Reason.PEER_LOST, "no link")
            return
        if put.unit_tokens != PREFILL_GEOMETRY.block_tokens:
            packed = memoryview(bytearray(sum(extent.length for extent in put.landing)))
            self.pool.pack(put.blocks, put.unit_tokens, put.first_unit, put.end_unit, packed, put.part)
            write = Write(put.transfer, packed, (Extent(0, len(packed)),), put.landing)
        else:
            source = source_extents(PREFILL_GEOMETRY, put.blocks, put.first_unit, put.end_unit, put.part)
            write = Write(put.transfer, self.pool.memory, tuple(source), put.landing)
        checksums = self.pool.checksums(put.blocks, put.unit_tokens, put.first_unit, put.end_unit, put.part)

        def done(detail: str | None) -> None:
            if not self.alive:
                return
            if detail is None:
                self.act(self.machine.put_done(put.key, put.put, checksums, self.world.heap.now))
            else:
                self._failed(put, Reason.PEER_LOST, detail)

        writer.write(write, done)

    def _failed(self, put: Put, reason: Reason, detail: str) -> None:
        self.act(self.machine.put_failed(put.key, put.put, reason, detail, self.world.heap.now))


class SimDecode:
    """One decode process: machine, pool, landing memory, an engine that reserves in order."""

    def __init__(self, world: Surroundings, name: str, epoch: bytes, block_tokens: int) -> None:
        self.world, self.name, self.epoch = world, name, epoch
        shape = PREFILL_GEOMETRY
        self.geometry = KvGeometry(shape.layers, shape.kv_heads, shape.head_dim, shape.element_bytes, block_tokens)
        self.machine = world.make_decode(self.geometry, 2_048, CONFIG, one_sided=world.faults.one_sided)
        self.pool = FakePool(self.geometry, 16)
        self.blocks = _Blocks(list(range(16)))
        self.region = bytearray(self.machine.landing_bytes)
        self.landing = MemoryLanding(memoryview(self.region), self, one_sided=world.faults.one_sided)
        self.landing.on_one_sided_write = self._check_late_write
        self.alive = True
        self.line: deque[Request] = deque()
        self.expected: set[HandoverKey] = set()
        self.ended: set[HandoverKey] = set()
        self.spans: dict[HandoverKey, tuple[bytes, tuple[Extent, ...]]] = {}
        self.later(CONFIG.tick_s, self._tick)

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.world.heap.after(delay_s, lambda: call() if self.alive else None)

    def _tick(self) -> None:
        self.act(self.machine.tick(self.world.heap.now))
        self.later(CONFIG.tick_s, self._tick)

    # The engine

    def reserve(self, request: Request) -> None:
        if request.key in self.expected or request.cancelled:
            return
        self.line.append(request)
        self.reserve_next()
        if request in self.line:
            position = len(self.line) - 1
            now = self.world.heap.now
            self.act(self.machine.queued(request.key, request.prefill, position, request.deadline_s, now))

    def reserve_next(self) -> None:
        while self.line:
            request = self.line[0]
            if request.cancelled:
                self.line.popleft()
                continue
            needed = -(-request.tokens // self.geometry.block_tokens)
            if needed > 16:
                self.line.popleft()
                now = self.world.heap.now
                self.act(self.machine.refused(request.key, request.prefill, Reason.TOO_LONG, "", now))
                self.world.failed(request.key, Reason.TOO_LONG)
                continue
            blocks = self.blocks.take(needed, request.key)
            if blocks is None:
                return
            self.line.popleft()
            request.target = blocks
            self.expected.add(request.key)
            cached = request.cached_units * 4
            self.act(
                self.machine.expected(
                    request.key,
                    request.prefill,
                    request.tokens,
                    cached,
                    blocks,
                    request.choices,
                    request.deadline_s,
                    self.world.heap.now,
                )
            )

    def _end(self, key: HandoverKey) -> None:
        assert key in self.expected, f"{key} ended without having been expected"
        assert key not in self.ended, f"{key} ended twice"
        self.ended.add(key)
        self.blocks.give_back(key)
        self.later(0.0, self.reserve_next)

    # The machine's actions

    def act(self, actions: list[DecodeAction]) -> None:
        for action in actions:
            self.world.note(self.name, action)
            match action:
                case Send(peer, message):
                    self.world.send(self.epoch, peer, message)
                case CutLink(peer):
                    self.world.cut(self.epoch, peer)
                case Scatter():
                    delay = self.world.delay(0.05)
                    self.later(delay, lambda scatter=action: self._scatter(scatter))  # type: ignore[misc]
                case Landed(key, first_tokens):
                    request = self.world.requests[key]
                    assert request.first_tokens == first_tokens
                    landed = self.pool.tokens(request.target, request.cached_units * 4, request.tokens)
                    assert landed == request.expected_tokens(), f"{key} landed with wrong bytes"
                    self.world.landed(key)
                    self._end(key)
                case Failed(key, reason):
                    self._end(key)
                    self.world.failed(key, reason)

    def _scatter(self, scatter: Scatter) -> None:
        held = {self.blocks.owner.get(block) for block in scatter.blocks}
        assert held == {scatter.key}, f"a scatter of {scatter.key} into blocks of {held}"
        if self.world.chance(self.world.faults.corrupt):
            at = scatter.landing.offset + self.world.heap.random.randrange(scatter.landing.length)
            self.region[at] ^= 1 << self.world.heap.random.randrange(8)
            self.world.corrupted.add(scatter.key)
        stream = memoryview(self.region)[scatter.landing.offset : scatter.landing.end]
        units = (scatter.unit_tokens, scatter.first_unit, scatter.end_unit, scatter.part)
        sums = self.pool.scatter(stream, scatter.blocks, *units)
        self.act(self.machine.scattered(scatter.key, scatter.first_unit, sums, self.world.heap.now))

    # The landing side's guard

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        return self.machine.claim(peer, transfer, offset, length)

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        if self.alive:
            self.act(self.machine.arrived(window, self.world.heap.now))

    def breached(self, peer: bytes, detail: str) -> None:
        raise AssertionError(f"{self.name} refused an honest peer's PUT: {detail}")

    def _check_late_write(self, peer: bytes, extent: Extent) -> None:
        holder = self.machine.holder_of(extent)
        assert holder == peer, f"a write of {peer!r} landed in bytes of {holder!r}"
