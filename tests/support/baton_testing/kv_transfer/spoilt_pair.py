"""One prefill and one decode machine over the `memory` transport and production KV pools, hand-over after hand-over,
each with one defect of its data: flipped, torn, swapped, stale, truncated, repeated. Whatever lands is compared with
what was computed.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import msgspec
import torch

from baton_engine.memory.kv_pool import KvPool
from baton_kv_transfer.decode.machine import DecodeHandovers
from baton_kv_transfer.decode.records import DecodeAction, HandoverFailed, Landed, Scatter
from baton_kv_transfer.grant import DecodePeer
from baton_kv_transfer.handover import CutLink, HandoverKey, Reservation, SendTo, TransferConfig
from baton_kv_transfer.landing import ClaimRefusal, LandingWindow
from baton_kv_transfer.layout import Extent, source_extents
from baton_kv_transfer.prefill.machine import PrefillHandovers
from baton_kv_transfer.prefill.records import PrefillAction, Put, Release, Report
from baton_kv_transfer.transports.seam import Write
from baton_testing.kv_transfer.defects import Defect, Result, Tally
from baton_testing.kv_transfer.memory_transport import MemoryLanding, MemoryWriter
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.pair_link import FirstToken, PairMessage, Seal
from baton_wire.messages.values import Reason

GEOMETRY = KvGeometry(layers=2, kv_heads=2, head_dim=4, element_bytes=4, block_tokens=4)
CONFIG = TransferConfig(max_put_bytes=2 * GEOMETRY.block_bytes)
P, D = b"p" * 16, b"d" * 16
BLOCKS = 12
DEADLINE_S = 1e9
SIDES = ("prefill", "decode", "both")


class SpoiltPair:
    """Both machines; `run` makes one hand-over. `one_sided`: the writer asks no guard, as with UCX."""

    def __init__(
        self,
        seed: int,
        *,
        one_sided: bool,
        make_decode: Callable[..., DecodeHandovers] = DecodeHandovers,
    ) -> None:
        self.random = random.Random(seed)
        self.one_sided = one_sided
        self.now = 0.0
        self.source = KvPool(GEOMETRY, BLOCKS, torch.float32, torch.device("cpu"))
        self.sink = KvPool(GEOMETRY, BLOCKS, torch.float32, torch.device("cpu"))
        self.prefill = PrefillHandovers(GEOMETRY, CONFIG)
        self.decode = make_decode(GEOMETRY, BLOCKS * GEOMETRY.block_bytes, CONFIG, one_sided=one_sided)
        self.region = bytearray(self.decode.landing_bytes)
        self.landing = MemoryLanding(memoryview(self.region), self, one_sided=one_sided)
        self.calls: deque[Callable[[], None]] = deque()
        self.attempt = self.links = 0
        self.failure: Reason | None = None
        self._old_bytes = bytes(self.region)
        self._old_write: Write | None = None
        self._old_seal: Seal | None = None
        self._link()

    # One hand-over ----------------------------------------------------------------------------------------------------

    def run(self, defect: Defect) -> Result:
        """Hand one sequence over, with the defect in it."""
        if not self.writer_is_open:
            self._link()
        self.attempt += 1
        self.now += 1.0
        self.key = HandoverKey(self.attempt.to_bytes(16), 1)
        self.tokens = self.random.randint(5, 40)
        cached = self.random.choice((0, 0, 4))
        count = -(-self.tokens // GEOMETRY.block_tokens)
        self.blocks = tuple(self.random.sample(range(BLOCKS), count))
        self.targets = tuple(self.random.sample(range(BLOCKS), count))
        self._fill(self.blocks)
        wanted = self._units(self.source, self.blocks, cached // 4, count)
        self.defect, self.injected, self.landed, self.failure = defect, False, False, None
        self.puts_left: list[Put] = []
        choices = tuple(FirstToken(choice=n, token=n) for n in range(self.random.choice((1, 2))))
        numbers = tuple(first.choice for first in choices)
        reservation = Reservation(self.tokens, cached, self.targets, numbers, DEADLINE_S)
        self._at_decode(self.decode.expected(self.key, P, reservation, self.now))
        self._at_prefill(self.prefill.opened(self.key, D, self.tokens, DEADLINE_S, self.now))
        self._work()
        self._at_prefill(self.prefill.computed(self.key, self.tokens, self.blocks, self.now))
        self._at_prefill(self.prefill.first_tokens(self.key, choices, self.now))
        self._work()
        is_exact = self.landed and self._units(self.sink, self.targets, cached // 4, count) == wanted
        result = Result(defect, self.injected, self.landed, is_exact, self.failure)
        self._clear()
        return result

    def assert_at_rest(self) -> None:
        """Neither side holds anything of an ended hand-over."""
        stats, seen = self.prefill.stats(), self.decode.stats()
        assert sum(stats.by_state.values()) == stats.puts_in_flight == stats.unannounced_messages == 0, stats
        assert sum(seen.by_state.values()) == seen.lingering == 0, seen
        assert seen.landing.free_bytes == seen.landing.total_bytes, seen

    def _clear(self) -> None:
        """End what a defect left open, so that the next hand-over begins with clean books."""
        if self.key in self.decode.open_keys():
            self._at_decode(self.decode.cancelled(self.key, Reason.CANCELLED, "", self.now))
        self._at_prefill(self.prefill.cancelled(self.key, Reason.CANCELLED, "", self.now))
        self._work()
        if self.defect is Defect.SEAL_FOREIGN:
            self._unlink()  # no honest peer seals another transfer: what it owes for its own is settled by the link
            self._work()
        if not self.writer_is_open:
            self._at_decode(self.decode.writes_ended(self.links, self.now))
        self.assert_at_rest()

    def _work(self) -> None:
        while self.calls:
            self.calls.popleft()()

    def _fill(self, blocks: tuple[int, ...]) -> None:
        size, memory = GEOMETRY.block_bytes, bytes_of(self.source)
        for block in blocks:
            memory[block * size : (block + 1) * size] = self.random.randbytes(size)

    def _units(self, pool: KvPool, blocks: tuple[int, ...], first: int, end: int) -> bytes:
        size, memory = GEOMETRY.block_bytes, bytes_of(pool)
        return b"".join(bytes(memory[block * size : (block + 1) * size]) for block in blocks[first:end])

    # Link -------------------------------------------------------------------------------------------------------------

    def _link(self) -> None:
        self.writer_is_open = True
        self.writer = MemoryWriter(P, self.landing, self._schedule, lambda: 0.0, lambda detail: None)
        self.links += 1
        self._at_decode(self.decode.link_up(P, GEOMETRY.block_tokens, self.now, link=self.links))
        facts = DecodePeer(GEOMETRY.block_tokens, self.decode.landing_bytes)
        self._at_prefill(self.prefill.link_up(D, facts, self.now))

    def _unlink(self) -> None:
        if self.writer_is_open:
            self.writer_is_open = False
            self.writer.close("cut")
            self.landing.drop(P)
            self._at_prefill(self.prefill.link_down(D, Reason.PEER_LOST, "cut", self.now))
            self._at_decode(self.decode.link_down(P, "cut", self.now))

    def _schedule(self, delay_s: float, call: Callable[[], None]) -> None:
        self.calls.append(call)

    # Prefill ----------------------------------------------------------------------------------------------------------

    def _at_prefill(self, actions: list[PrefillAction]) -> None:
        for action in actions:
            match action:
                case SendTo(_, message):
                    self.calls.append(lambda message=message: self._deliver(message))  # type: ignore[misc]
                case Put():
                    self._put(action)
                case CutLink():
                    self._unlink()
                case Release() | Report():
                    pass

    def _deliver(self, message: PairMessage) -> None:
        if not self.writer_is_open:
            return
        if isinstance(message, Seal):
            spoilt = self._spoil_seal(message)
            self._old_seal = message
            message = spoilt
        self._at_decode(self.decode.message(P, message, self.now))

    def _put(self, put: Put) -> None:
        source = source_extents(GEOMETRY, put.units)
        sums = self.source.checksums(put.units)
        write = Write(put.transfer, bytes_of(self.source), tuple(source), put.landing)
        is_last = put.units.end == -(-self.tokens // GEOMETRY.block_tokens)
        if self.defect is Defect.EARLY_FREE and not self.injected:
            self.injected = True
            self._fill((self.random.choice(put.units.blocks[put.units.first : put.units.end]),))
        if self.defect is Defect.SEALED_EARLY and is_last:
            self.injected = True
            self.calls.append(lambda: self._at_prefill(self.prefill.put_done(put.key, put.put, sums, self.now)))
            return  # the write itself never happens before the Seal
        if self.defect is Defect.TRUNCATED and is_last:
            write = self._truncated(write)

        def done(detail: str | None) -> None:
            if detail is None:
                if self.defect is Defect.REPEATED and self._old_write is not None and not self.injected:
                    self._repeat(self._old_write)
                self._old_write = Write(write.transfer, memoryview(bytes(write.region)), write.source, write.landing)
                self._at_prefill(self.prefill.put_done(put.key, put.put, sums, self.now))
            else:
                failed = self.prefill.put_failed(put.key, put.put, Reason.PEER_LOST, detail, self.now)
                self._at_prefill(failed)

        self.writer.write(write, done)

    def _repeat(self, old: Write) -> None:
        self.injected = True
        if self.one_sided:  # no guard is asked: the bytes land where they were once to go
            before = bytes(self.region)
            at = 0
            data = b"".join(bytes(old.region[extent.offset : extent.end]) for extent in old.source)
            for extent in old.landing:
                self.region[extent.offset : extent.end] = data[at : at + extent.length]
                at += extent.length
            self.injected = self._hits(before)
        else:
            self.writer.write(old, lambda detail: None)

    def _hits(self, before: bytes) -> bool:
        """True if bytes that were granted to this hand-over changed."""
        changed = (at for at, (old, new) in enumerate(zip(before, self.region, strict=True)) if old != new)
        return any(self.decode.holder_of(Extent(at, 1)) is not None for at in changed)

    def _truncated(self, write: Write) -> Write:
        self.injected = True
        keep = self.random.randrange(0, sum(extent.length for extent in write.landing), 4)
        return Write(write.transfer, write.region, _first(write.source, keep), _first(write.landing, keep))

    # Decode -----------------------------------------------------------------------------------------------------------

    def _at_decode(self, actions: list[DecodeAction]) -> None:
        for action in actions:
            match action:
                case SendTo(_, message):
                    self.calls.append(lambda message=message: self._answer(message))  # type: ignore[misc]
                case Scatter():
                    self.calls.append(lambda scatter=action: self._scatter(scatter))  # type: ignore[misc]
                case CutLink():
                    self._unlink()
                case Landed():
                    self.landed = True
                case HandoverFailed(_, reason):
                    self.failure = reason

    def _answer(self, message: PairMessage) -> None:
        if self.writer_is_open:
            self._at_prefill(self.prefill.message(D, message, self.now))

    def _scatter(self, scatter: Scatter) -> None:
        extent = scatter.landing
        self._spoil_landing(extent)
        stream = memoryview(self.region)[extent.offset : extent.end]
        sums = self.sink.scatter(stream, scatter.units)
        self._at_decode(self.decode.scattered(scatter.key, scatter.units.first, sums, self.now))
        self._old_bytes = bytes(self.region)

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        return self.decode.claim(peer, transfer, offset, length)

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        self._at_decode(self.decode.arrived(window, self.now))

    def breached(self, peer: bytes, detail: str) -> None:
        assert self.defect is Defect.REPEATED, f"an honest write was refused: {detail}"
        self._unlink()

    # Defects of the data ----------------------------------------------------------------------------------------------

    def _spoil_landing(self, extent: Extent) -> None:
        if self.injected:
            return
        before = bytes(self.region[extent.offset : extent.end])
        spoil = _SPOIL.get(self.defect)
        if spoil is not None:
            after = spoil(self.random, before, self._old_bytes[extent.offset : extent.end])
            self.region[extent.offset : extent.end] = after
            self.injected = after != before

    def _spoil_seal(self, seal: Seal) -> Seal:
        sums = seal.checksums
        match self.defect:
            case Defect.SEAL_FLIPPED:
                sums = _flipped(self.random, sums, b"")
            case Defect.SEAL_SWAPPED:
                sums = _swapped(self.random, sums, 8)
            case Defect.SEAL_SHORT:
                sums = sums[:-8]
            case Defect.SEAL_STALE:
                old = self._old_seal.checksums if self._old_seal is not None else b""
                sums = (old + sums)[: len(sums)]
            case Defect.SEAL_FOREIGN:
                self.injected = True
                return msgspec.structs.replace(seal, transfer=seal.transfer + self.random.choice((-1, 1, 7)))
            case Defect.SEAL_CHOICES:
                self.injected = True
                first = FirstToken(choice=len(seal.first_tokens), token=1)
                return msgspec.structs.replace(seal, first_tokens=(*seal.first_tokens[:-1], first))
        self.injected |= sums != seal.checksums
        return msgspec.structs.replace(seal, checksums=sums)


class CancelledPair(SpoiltPair):
    """Cancels a hand-over after its n-th event, at one side or at both.

    Events are messages, writes and scatters, in the order they happen.
    """

    def __init__(self, seed: int, *, one_sided: bool) -> None:
        self._point = -1
        self._side = ""
        self.events = 0
        super().__init__(seed, one_sided=one_sided)

    def cancel_at(self, point: int, side: str) -> Result:
        """Cancel after `point` events; later than the last one means after the end. Books are empty afterwards."""
        self._point, self._side, self.events = point, side, 0
        result = self.run(Defect.NONE)
        self._point = -1
        return result

    def _work(self) -> None:
        while self.calls or self.events == self._point:
            if self.events == self._point:
                self._point = -1
                self._cancel()
            elif self.calls:
                self.calls.popleft()()
                self.events += 1

    def _cancel(self) -> None:
        if self._side in ("prefill", "both"):
            self._at_prefill(self.prefill.cancelled(self.key, Reason.CANCELLED, "", self.now))
        if self._side in ("decode", "both"):
            self._at_decode(self.decode.cancelled(self.key, Reason.CANCELLED, "", self.now))


def _first(extents: tuple[Extent, ...], length: int) -> tuple[Extent, ...]:
    shortened: list[Extent] = []
    for extent in extents:
        if length > 0:
            shortened.append(Extent(extent.offset, min(extent.length, length)))
            length -= extent.length
    return tuple(shortened)


def _flipped(draw: random.Random, data: bytes, old: bytes) -> bytes:
    spoilt = bytearray(data)
    if spoilt:
        spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
    return bytes(spoilt)


def _torn(draw: random.Random, data: bytes, old: bytes) -> bytes:
    at = draw.randrange(len(data))
    return data[:at] + old[at:]


def _swapped(draw: random.Random, data: bytes, size: int) -> bytes:
    count = len(data) // size
    if count < 2:
        return data
    one, other = sorted(draw.sample(range(count), 2))
    parts = [data[n * size : (n + 1) * size] for n in range(count)]
    parts[one], parts[other] = parts[other], parts[one]
    return b"".join(parts) + data[count * size :]


PIECE_BYTES = GEOMETRY.block_bytes // (2 * GEOMETRY.layers)

_SPOIL: dict[Defect, Callable[[random.Random, bytes, bytes], bytes]] = {
    Defect.FLIPPED: _flipped,
    Defect.TORN: _torn,
    Defect.STALE: lambda draw, data, old: old,
    Defect.SWAPPED_UNITS: lambda draw, data, old: _swapped(draw, data, GEOMETRY.block_bytes),
    Defect.SWAPPED_PIECES: lambda draw, data, old: _swapped(draw, data, PIECE_BYTES),
    Defect.SWAPPED_WORDS: lambda draw, data, old: _swapped(draw, data[:PIECE_BYTES], 4) + data[PIECE_BYTES:],
}


def spoil(count: int, seed: int, *, one_sided: bool) -> Tally:
    """`count` hand-overs, each with a random defect, one in ten without."""
    pair = SpoiltPair(seed, one_sided=one_sided)
    defects = [defect for defect in Defect if defect is not Defect.NONE]
    tally = Tally()
    for _ in range(count):
        chosen = Defect.NONE if pair.random.random() < 0.1 else pair.random.choice(defects)
        tally.add(pair.run(chosen))
    return tally


def bytes_of(pool: KvPool) -> memoryview:
    region = pool.region()
    assert region is not None
    return region
