"""Builders for tests of the KV transfer: a KV pool of bytes, key directories, fingerprints, listeners that record."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.layout import StreamLayout
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.kv_shape import KvGeometry, PoolPart, Units
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import WIRE_VERSION, Finish, PairFingerprint, Reason, RequestKey

GEOMETRY = KvGeometry(layers=2, kv_heads=2, head_dim=4, element_bytes=4, block_tokens=4)

WHOLE = GEOMETRY.whole

FAST = TransferConfig(
    heartbeat_s=0.05,
    liveness=LivenessConfig(1.0, 2.0),
    handshake_s=10.0,
    link_wait_s=5.0,
    tick_s=0.01,
    closing_s=0.5,
    kept_s=0.0,
)
"""A tenth of the usual times, where a machine with other work does not come near them."""


def fingerprint(**changes: object) -> PairFingerprint:
    values: dict[str, object] = {
        "wire_version": WIRE_VERSION,
        "model_hash": "a" * 64,
        "dtype": "float32",
        "kv_dtype": "float32",
        "layers": 2,
        "kv_heads": 2,
        "head_dim": 4,
        "rope": "b" * 64,
        "tokenizer": "c" * 64,
    }
    return PairFingerprint(**{**values, **changes})  # type: ignore[arg-type]


def key_directory(path: Path, *key_ids: str) -> KeyDirectory:
    path.mkdir(exist_ok=True)
    for key_id in key_ids or ("k1",):
        write_new_key(path, key_id)
    return KeyDirectory(path)


def first_tokens(*choices: int, finish: Finish | None = None) -> tuple[FirstToken, ...]:
    return tuple(FirstToken(choice=choice, token=100 + choice, finish=finish) for choice in choices or (0,))


class FakePool:
    """KV pool in a bytearray with the real layout, `[block][layer][K,V][head][slot][dim]`; counts what it does."""

    def __init__(self, geometry: KvGeometry, num_blocks: int, *, host_memory: bool = True) -> None:
        self.geometry = geometry
        self.memory = memoryview(bytearray(geometry.block_bytes * num_blocks))
        self.host_memory = host_memory
        self.random_bytes: Callable[[int], bytes] = secrets.token_bytes
        self.spoil: Callable[[memoryview], None] | None = None
        self.scattered_units = 0

    def fill(self, blocks: Sequence[int]) -> None:
        """Random bytes in every slot of these blocks."""
        for block in blocks:
            size = self.geometry.block_bytes
            self.memory[block * size : (block + 1) * size] = self.random_bytes(size)

    def block(self, block: int) -> bytes:
        size = self.geometry.block_bytes
        return bytes(self.memory[block * size : (block + 1) * size])

    def reveal(
        self, final: dict[int, bytes], blocks: Sequence[int], start: int, end: int, part: PoolPart | None
    ) -> None:
        """Tokens [start, end) get what `final` has for their blocks."""
        for token in range(start, end):
            for first, last in self._rows(blocks, 1, token, part):
                block, inside = divmod(first, self.geometry.block_bytes)
                self.memory[first:last] = final[block][inside : inside + last - first]

    def region(self) -> memoryview | None:
        return self.memory if self.host_memory else None

    def unit(self, blocks: Sequence[int], unit_tokens: int, unit: int, part: PoolPart | None = None) -> bytes:
        """One unit in stream layout."""
        rows = self._rows(blocks, unit_tokens, unit, part)
        return b"".join(bytes(self.memory[start:end]) for start, end in rows)

    def pack(self, units: Units, out: memoryview, /) -> None:
        out[:] = b"".join(self._each(units))

    def checksums(self, units: Units, /) -> bytes:
        return b"".join(piece_checksums(self._of(units.part), units.tokens, unit) for unit in self._each(units))

    def scatter(self, stream: memoryview, units: Units, /) -> bytes:
        if self.spoil is not None:
            self.spoil(stream)
        return b"".join(self._scatter(group, data) for group, data in by_group(units, stream))

    def _scatter(self, units: Units, stream: memoryview) -> bytes:
        size = self._of(units.part).token_bytes * units.tokens
        sums = b""
        for index, unit in enumerate(range(units.first, units.end)):
            data = bytes(stream[index * size : (index + 1) * size])
            sums += piece_checksums(self._of(units.part), units.tokens, data)
            at = 0
            for start, end in self._rows(units.blocks, units.tokens, unit, units.part):
                self.memory[start:end] = data[at : at + end - start]
                at += end - start
            self.scattered_units += 1
        return sums

    def _each(self, units: Units) -> Iterator[bytes]:
        return (self.unit(units.blocks, units.tokens, unit, units.part) for unit in range(units.first, units.end))

    def tokens(self, blocks: Sequence[int], start: int, end: int) -> list[bytes]:
        """KV of every token in [start, end), whatever the block size: what two pools must agree on."""
        return [self.unit(blocks, 1, token) for token in range(start, end)]

    def _of(self, part: PoolPart | None) -> KvGeometry:
        """The shape of a part of the blocks."""
        if part is None:
            return replace(self.geometry, groups=())
        layers, heads = part.end_layer - part.first_layer, part.end_head - part.first_head
        return replace(self.geometry, layers=layers, kv_heads=heads, groups=())

    def _rows(self, blocks: Sequence[int], unit_tokens: int, unit: int, part: PoolPart | None) -> list[tuple[int, int]]:
        geometry = self.geometry
        row = geometry.head_dim * geometry.element_bytes
        block, slot = divmod(unit * unit_tokens, geometry.block_tokens)
        base = blocks[block] * geometry.block_bytes
        whole = part or PoolPart(0, geometry.layers, 0, geometry.kv_heads)
        heads = [
            side * geometry.kv_heads + head
            for side in range(2 * whole.first_layer, 2 * whole.end_layer)
            for head in range(whole.first_head, whole.end_head)
        ]
        starts = [base + (head * geometry.block_tokens + slot) * row for head in heads]
        return [(start, start + unit_tokens * row) for start in starts]


def heads_from(data: bytes, geometry: KvGeometry, heads: range) -> bytes:
    """These heads of bytes laid out as `[layer][K,V][head]…`."""
    size = len(data) // (geometry.layers * 2 * geometry.kv_heads)
    sides = range(0, len(data), size * geometry.kv_heads)
    return b"".join(data[at + heads.start * size : at + heads.stop * size] for at in sides)


def by_group(units: Units, stream: memoryview) -> list[tuple[Units, memoryview]]:
    """The same units layer group by layer group, with their part of the stream."""
    if units.groups == 1:
        return [(units, stream)]
    layers, size = (units.part.end_layer - units.part.first_layer) // units.groups, len(stream) // units.groups
    firsts = [units.part.first_layer + group * layers for group in range(units.groups)]
    parts = [replace(units.part, first_layer=first, end_layer=first + layers) for first in firsts]
    return [(replace(units, part=part, groups=1), stream[at * size : (at + 1) * size]) for at, part in enumerate(parts)]


def piece_checksums(geometry: KvGeometry, unit_tokens: int, unit: bytes) -> bytes:
    """Stand-in of the kernels' checksum: any 8 bytes per piece that depend on every byte of it."""
    size = StreamLayout(geometry, unit_tokens, 0, unit_tokens).piece_bytes
    pieces = [unit[start : start + size] for start in range(0, len(unit), size)]
    return b"".join(hashlib.blake2b(piece, digest_size=8).digest() for piece in pieces)


@dataclass
class PrefillRecord:
    calls: list[tuple[str, RequestKey]] = field(default_factory=list)
    """Every call in order: its name and whom it is about."""
    granted: list[RequestKey] = field(default_factory=list)
    released: list[RequestKey] = field(default_factory=list)
    reports: list[tuple[RequestKey, Reason, str]] = field(default_factory=list)
    """By the attempt that failed."""

    def on_granted(self, key: RequestKey) -> None:
        self.calls.append(("granted", key))
        self.granted.append(key)

    def on_release(self, key: RequestKey) -> None:
        self.calls.append(("released", key))
        self.released.append(key)

    def on_report(self, key: RequestKey, reason: Reason, detail: str, failed_attempt: int, kept: bool) -> None:
        self.calls.append(("reported", key))
        self.reports.append((RequestKey(key.request, failed_attempt), reason, detail))


@dataclass
class DecodeRecord:
    landed: list[tuple[RequestKey, tuple[FirstToken, ...]]] = field(default_factory=list)
    failed: list[tuple[RequestKey, Reason, str]] = field(default_factory=list)

    def on_landed(self, key: RequestKey, tokens: tuple[FirstToken, ...]) -> None:
        self.landed.append((key, tokens))

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        self.failed.append((key, reason, detail))


async def eventually(condition: Callable[[], object], timeout_s: float = 60.0) -> None:
    """Wait until the condition holds. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not after {timeout_s} s")
        await asyncio.sleep(0.002)
