"""The worker processes of the hand-over simulation: production machines of one or several ranks, with played engine,
pools and carrier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from baton_kv_transfer.decode.group import AtDecodeRank, DecodeGroup, GroupDecodeAction
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import HandoverFailed, Landed, Scatter
from baton_kv_transfer.handover import CutLink, HandoverKey, Reservation, SendTo, TransferConfig
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent, source_extents
from baton_kv_transfer.prefill.group import AtPrefillRank, GroupPrefillAction, PrefillGroup
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import DropPuts, Put, Release, Report
from baton_kv_transfer.ranks.tensor_parallel import RankPeer, heads_of, rank_epoch
from baton_kv_transfer.transports.seam import Write
from baton_testing.kv_transfer.builders import FakePool, heads_from
from baton_testing.kv_transfer.memory_transport import MemoryLanding, MemoryWriter
from baton_testing.ranks.one_link import OneLinkDecode, OneLinkPrefill
from baton_testing.virtual_time.event_heap import EventHeap
from baton_wire.kv_shape import KvGeometry, PoolPart
from baton_wire.messages.pair_link import FirstToken, PairMessage
from baton_wire.messages.values import Reason

CONFIG = TransferConfig(
    link_wait_s=2.0,
    unannounced_s=3.0,
    pin_s=4.0,
    closing_s=1.0,
    max_put_bytes=256,
    group_bytes=64,
    portion_bytes=64,
    quarantine_share=0.9,
    tick_s=0.25,
)
PREFILL_GEOMETRY = KvGeometry(layers=2, kv_heads=1, head_dim=1, element_bytes=4, block_tokens=4)
"""KV geometry for one KV head; `Faults.kv_heads` says how many the model has."""


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
    """Content of each block of `source` once all is computed."""
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
    kv_heads: int = 1
    ranks: tuple[int, ...] = (1,)
    """How many ranks a prefill worker may have, and a decode worker unless `decode_ranks` says otherwise."""
    decode_ranks: tuple[int, ...] = ()
    one_link: bool = False
    """Two workers have one link for all their legs, as in production; else each pair of ranks has one."""


class Surroundings(Protocol):
    """The part of the world that a process uses."""

    heap: EventHeap
    faults: Faults
    geometry: KvGeometry
    requests: dict[HandoverKey, Request]
    corrupted: set[HandoverKey]
    make_prefill: Callable[..., PrefillHandovers]
    make_decode: Callable[..., DecodeHandovers]
    make_prefill_group: Callable[..., PrefillGroup | OneLinkPrefill]
    make_decode_group: Callable[..., DecodeGroup | OneLinkDecode]

    def delay(self, most_s: float) -> float: ...

    def chance(self, share: float) -> bool: ...

    def note(self, who: str, action: object) -> None: ...

    def send(self, sender: bytes, receiver: bytes, message: PairMessage) -> None: ...

    def cut(self, one: bytes, other: bytes) -> None: ...

    def failed(self, key: HandoverKey, reason: Reason) -> None: ...

    def landed(self, key: HandoverKey) -> None: ...


class SimWorker:
    """Base of both kinds of worker: life, and a shard of the model's KV at each rank."""

    def __init__(
        self,
        world: Surroundings,
        name: str,
        epoch: bytes,
        block_tokens: int,
        num_blocks: int,
        ranks: tuple[int, ...],
    ) -> None:
        self.world, self.name, self.epoch = world, name, epoch
        self.alive = True
        self.geometry = replace(world.geometry, block_tokens=block_tokens)
        self.ranks = world.heap.random.choice(ranks)
        self.heads = [heads_of(world.geometry.kv_heads, self.ranks, rank) for rank in range(self.ranks)]
        self.shapes = [replace(self.geometry, kv_heads=len(heads)) for heads in self.heads]
        self.pools = [FakePool(shape, num_blocks) for shape in self.shapes]
        self.blocks = _Blocks(list(range(num_blocks)))
        for pool in self.pools:
            pool.random_bytes = world.heap.random.randbytes

    def later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.world.heap.after(delay_s, lambda: call() if self.alive else None)

    def rank_name(self, rank: int) -> bytes:
        return rank_epoch(self.epoch, rank)

    def peer(self, rank: int) -> RankPeer:
        return RankPeer(self.epoch, self.ranks, rank)


class SimPrefill(SimWorker):
    """One prefill worker: machines, pools, the writers it holds."""

    def __init__(self, world: Surroundings, name: str, epoch: bytes) -> None:
        super().__init__(world, name, epoch, PREFILL_GEOMETRY.block_tokens, 24, world.faults.ranks)
        machines = [world.make_prefill(shape, CONFIG) for shape in self.shapes]
        self.machine = world.make_prefill_group(self.geometry, machines, CONFIG)
        self.writers: dict[tuple[int, bytes], MemoryWriter] = {}
        self.opened: set[HandoverKey] = set()
        self.released: set[HandoverKey] = set()
        self.unstarted: list[tuple[int, Put]] = []
        self.later(CONFIG.tick_s, self._tick)

    def _tick(self) -> None:
        self.act(self.machine.tick(self.world.heap.now))
        self.later(CONFIG.tick_s, self._tick)

    def reveal(
        self, request: Request, start: int, end: int, rank: int | None = None, layers: int | None = None
    ) -> None:
        """Tokens [start, end) are computed: at all ranks or one, in all layers or the first ones."""
        blocks = request.source[: -(-end // 4)]
        for number in range(self.ranks) if rank is None else (rank,):
            final = {
                block: heads_from(data, self.geometry, self.heads[number]) for block, data in request.final.items()
            }
            part = None if layers is None else PoolPart(0, layers, 0, len(self.heads[number]))
            self.pools[number].reveal(final, blocks, start, end, part)

    def act(self, actions: list[GroupPrefillAction]) -> None:
        for action in actions:
            self.world.note(self.name, action)
            match action:
                case AtPrefillRank(rank, SendTo(peer, message)):
                    self.world.send(self.rank_name(rank), peer, message)
                case AtPrefillRank(rank, CutLink(peer)):
                    self.world.cut(self.rank_name(rank), peer)
                case AtPrefillRank(rank, Put() as put):
                    self.unstarted.append((rank, put))
                    self.later(self.world.delay(0.02), lambda rank=rank, put=put: self._start(rank, put))  # type: ignore[misc]
                case AtPrefillRank(rank, DropPuts(key)):
                    for at, put in [entry for entry in self.unstarted if entry[0] == rank and entry[1].key == key]:
                        self.unstarted.remove((at, put))
                        self._failed(rank, put, Reason.CANCELLED, "dropped")
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
        mine = self.blocks.give_back(key)
        for pool in self.pools:
            pool.fill(mine)  # another request's KV, at once

    def _start(self, rank: int, put: Put) -> None:
        if (rank, put) not in self.unstarted:
            return
        self.unstarted.remove((rank, put))
        writer = self.writers.get((0 if self.world.faults.one_link else rank, put.peer))
        if writer is None:
            self._failed(rank, put, Reason.PEER_LOST, "no link")
            return
        pool = self.pools[rank]
        if put.units.tokens != PREFILL_GEOMETRY.block_tokens:
            packed = memoryview(bytearray(sum(extent.length for extent in put.landing)))
            pool.pack(put.units, packed)
            write = Write(put.transfer, packed, (Extent(0, len(packed)),), put.landing)
        else:
            source = source_extents(self.shapes[rank], put.units)
            write = Write(put.transfer, pool.memory, tuple(source), put.landing)
        checksums = pool.checksums(put.units)

        def done(detail: str | None) -> None:
            if not self.alive:
                return
            if detail is None:
                self.act(self.machine.put_done(rank, put.key, put.put, checksums, self.world.heap.now))
            else:
                self._failed(rank, put, Reason.PEER_LOST, detail)

        writer.write(write, done)

    def _failed(self, rank: int, put: Put, reason: Reason, detail: str) -> None:
        self.act(self.machine.put_failed(rank, put.key, put.put, reason, detail, self.world.heap.now))


class SimDecode(SimWorker):
    """One decode worker: machines, pools, landing memory, an engine that reserves in order."""

    def __init__(self, world: Surroundings, name: str, epoch: bytes, block_tokens: int) -> None:
        super().__init__(world, name, epoch, block_tokens, 16, world.faults.decode_ranks or world.faults.ranks)
        one_sided, shift = world.faults.one_sided, 2_048 if world.faults.one_link else 0
        machines = [
            world.make_decode(shape, 2_048, CONFIG, one_sided=one_sided, landing_start=rank * shift)
            for rank, shape in enumerate(self.shapes)
        ]
        self.machine = world.make_decode_group(self.geometry, machines, CONFIG)
        self.landings = [LandingRank(self, rank) for rank in range(len(self.machine.ranks))]
        self.line: deque[Request] = deque()
        self.links = 0
        self.expected: set[HandoverKey] = set()
        self.ended: set[HandoverKey] = set()
        self.later(CONFIG.tick_s, self._tick)

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
                    Reservation(request.tokens, cached, blocks, request.choices, request.deadline_s),
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

    def act(self, actions: list[GroupDecodeAction]) -> None:
        for action in actions:
            self.world.note(self.name, action)
            match action:
                case AtDecodeRank(rank, SendTo(peer, message)):
                    self.world.send(self.rank_name(rank), peer, message)
                case AtDecodeRank(rank, CutLink(peer)):
                    self.world.cut(self.rank_name(rank), peer)
                case AtDecodeRank(rank, Scatter() as scatter):
                    delay = self.world.delay(0.05)
                    self.later(delay, lambda rank=rank, scatter=scatter: self._scatter(rank, scatter))  # type: ignore[misc]
                case Landed(key, first_tokens):
                    request = self.world.requests[key]
                    assert request.first_tokens == first_tokens
                    for rank in range(self.ranks):
                        self._check_landed(request, rank)
                    self.world.landed(key)
                    self._end(key)
                case HandoverFailed(key, reason):
                    self._end(key)
                    self.world.failed(key, reason)

    def _check_landed(self, request: Request, rank: int) -> None:
        """This rank's pool holds exactly its heads of the unsplit KV."""
        landed = self.pools[rank].tokens(request.target, request.cached_units * 4, request.tokens)
        whole = request.expected_tokens()
        wanted = [heads_from(token, self.geometry, self.heads[rank]) for token in whole]
        assert landed == wanted, f"{request.key} landed with wrong bytes at rank {rank}"

    def _scatter(self, rank: int, scatter: Scatter) -> None:
        landing = 0 if self.world.faults.one_link else rank
        key, region = replace(scatter.key, rank=0), self.landings[landing].region
        held = {self.blocks.owner.get(block) for block in scatter.units.blocks}
        assert held == {key}, f"a scatter of {scatter.key} into blocks of {held}"
        if self.world.chance(self.world.faults.corrupt):
            at = scatter.landing.offset + self.world.heap.random.randrange(scatter.landing.length)
            region[at] ^= 1 << self.world.heap.random.randrange(8)
            self.world.corrupted.add(key)
        stream = memoryview(region)[scatter.landing.offset : scatter.landing.end]
        sums = self.pools[rank].scatter(stream, scatter.units)
        self.act(self.machine.scattered(rank, scatter.key, scatter.units.first, sums, self.world.heap.now))


class LandingRank:
    """One rank's landing memory, and the guard of what is written there."""

    def __init__(self, decode: SimDecode, rank: int) -> None:
        self.decode, self.rank = decode, rank
        self.region = bytearray(decode.machine.ranks[rank].landing_bytes)
        one_sided = decode.world.faults.one_sided
        self.memory = MemoryLanding(memoryview(self.region), self, one_sided=one_sided)
        self.memory.on_one_sided_write = self._check_late_write

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        return self.decode.machine.claim(self.rank, peer, transfer, offset, length)

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        if self.decode.alive:
            self.decode.act(self.decode.machine.arrived(self.rank, window, self.decode.world.heap.now))

    def breached(self, peer: bytes, detail: str) -> None:
        raise AssertionError(f"{self.decode.name} refused an honest peer's PUT: {detail}")

    def _check_late_write(self, peer: bytes, extent: Extent) -> None:
        holder = self.decode.machine.ranks[self.rank].holder_of(extent)
        assert holder == peer, f"a write of {peer!r} landed in bytes of {holder!r}"
