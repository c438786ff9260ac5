"""Arithmetic of the hand-over's byte stream: units, pieces, bytes, and where they lie in pool and landing region.

A hand-over moves whole *units* of `unit_tokens` token slots, the smaller of the two workers' block sizes. The stream is
unit-major, `[unit][layer][K,V][kv_head][slot][dim]`, whatever the pools look like inside. A *piece* is the part of one
unit, layer, K or V and head group: the grain of checksums and, with unequal tensor parallelism, of coverage. Numbers
only: no memory is touched here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton_kv_transfer.errors import UnfitPairError
from baton_kv_transfer.wire.pair_link import Span

CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Shape of a pool's blocks, `[layers, 2, kv_heads, block_tokens, head_dim]` elements each.

    Raises ValueError naming the field when one is not positive.
    """

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int
    block_tokens: int

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "element_bytes", "block_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: {getattr(self, field)} is not positive")

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens


@dataclass(frozen=True, slots=True)
class Extent:
    """`length` bytes at `offset` of some region or stream."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


def negotiated_unit(own_block_tokens: int, peer_block_tokens: int) -> int:
    """Tokens per unit between two workers. Raises UnfitPairError when neither block size is a multiple of the other."""
    smaller, larger = sorted((own_block_tokens, peer_block_tokens))
    if smaller < 1 or larger % smaller:
        raise UnfitPairError(
            f"block_tokens: {own_block_tokens} here and {peer_block_tokens} there: one must divide the other"
        )
    return smaller


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The byte stream of tokens [start_tokens, end_tokens) of one sequence, in units of `unit_tokens`.

    The last unit is sent whole even if the sequence ends inside it. Raises ValueError on an impossible range.
    """

    geometry: KvGeometry
    unit_tokens: int
    start_tokens: int
    end_tokens: int
    head_groups: int = 1
    """Pieces per (unit, layer, K or V): more than one between workers of unequal tensor parallelism."""

    def __post_init__(self) -> None:
        if self.unit_tokens < 1 or self.geometry.block_tokens % self.unit_tokens:
            raise ValueError(
                f"unit_tokens: {self.unit_tokens} does not divide the block of {self.geometry.block_tokens}"
            )
        if self.start_tokens < 0 or self.start_tokens % self.unit_tokens:
            raise ValueError(f"start_tokens: {self.start_tokens} is not a multiple of the unit {self.unit_tokens}")
        if self.end_tokens < self.start_tokens:
            raise ValueError(f"end_tokens: {self.end_tokens} lies before start_tokens {self.start_tokens}")
        if self.head_groups < 1 or self.geometry.kv_heads % self.head_groups:
            raise ValueError(f"head_groups: {self.head_groups} does not divide {self.geometry.kv_heads} heads")

    @property
    def first_unit(self) -> int:
        return self.start_tokens // self.unit_tokens

    @property
    def end_unit(self) -> int:
        return -(-self.end_tokens // self.unit_tokens)

    @property
    def units(self) -> int:
        return self.end_unit - self.first_unit

    @property
    def unit_bytes(self) -> int:
        return self.geometry.token_bytes * self.unit_tokens

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer (K and V) of one unit."""
        return self.unit_bytes // self.geometry.layers

    @property
    def pieces_per_unit(self) -> int:
        return self.geometry.layers * 2 * self.head_groups

    @property
    def piece_bytes(self) -> int:
        return self.unit_bytes // self.pieces_per_unit

    @property
    def pieces(self) -> int:
        return self.units * self.pieces_per_unit

    @property
    def checksum_bytes(self) -> int:
        return self.pieces * CHECKSUM_BYTES

    @property
    def stream_bytes(self) -> int:
        return self.units * self.unit_bytes

    def whole_units(self, computed_tokens: int) -> int:
        """End of the units that can be sent once KV of [0, computed_tokens) stands; a partial last one at the end."""
        if computed_tokens >= self.end_tokens:
            return self.end_unit
        return max(self.first_unit, computed_tokens // self.unit_tokens)

    def stream_extents(self, first_unit: int, end_unit: int, layers: range | None = None) -> list[Extent]:
        """Where these units, or some adjacent layers of them, lie. Raises ValueError outside the stream."""
        if not self.first_unit <= first_unit <= end_unit <= self.end_unit:
            raise ValueError(f"units [{first_unit}, {end_unit}) are not in [{self.first_unit}, {self.end_unit})")
        start = (first_unit - self.first_unit) * self.unit_bytes
        if layers is None or layers == range(self.geometry.layers):
            return [Extent(start, (end_unit - first_unit) * self.unit_bytes)] if end_unit > first_unit else []
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= self.geometry.layers:
            raise ValueError(f"layers: {layers} is not a range inside [0, {self.geometry.layers})")
        inside, length = layers.start * self.layer_bytes, len(layers) * self.layer_bytes
        return [Extent(start + u * self.unit_bytes + inside, length) for u in range(end_unit - first_unit)]

    def piece_at(self, index: int) -> tuple[int, int, int, int]:
        """(unit, layer, 0 for K or 1 for V, head group) of the stream's index-th piece."""
        unit, rest = divmod(index, self.pieces_per_unit)
        layer, rest = divmod(rest, 2 * self.head_groups)
        return self.first_unit + unit, layer, rest // self.head_groups, rest % self.head_groups

    def head_group_extent(self, unit: int, layer: int, value: int, group: int) -> Extent:
        """Stream bytes of one piece; `value` is 0 for K, 1 for V."""
        index = (((unit - self.first_unit) * self.geometry.layers + layer) * 2 + value) * self.head_groups + group
        return Extent(index * self.piece_bytes, self.piece_bytes)


def source_extents(geometry: KvGeometry, blocks: Sequence[int], first_unit: int, end_unit: int) -> list[Extent]:
    """Where units [first_unit, end_unit) lie in the pool when a unit is exactly one block; neighbours are joined.

    Raises ValueError when the block table is too short.
    """
    if end_unit > len(blocks):
        raise ValueError(f"blocks: {len(blocks)} given, unit {end_unit - 1} needs {end_unit}")
    size = geometry.block_bytes
    return joined(Extent(block * size, size) for block in blocks[first_unit:end_unit])


def joined(extents: Iterator[Extent] | Sequence[Extent]) -> list[Extent]:
    """The same bytes in the same order with adjacent extents made one."""
    result: list[Extent] = []
    for extent in extents:
        if result and result[-1].end == extent.offset:
            result[-1] = Extent(result[-1].offset, result[-1].length + extent.length)
        else:
            result.append(extent)
    return result


def landing_extents(spans: Sequence[Span], stream: Extent) -> list[Extent]:
    """Where `stream` bytes lie in the landing region when the stream runs through `spans` in order.

    Raises ValueError when the spans end before it.
    """
    result: list[Extent] = []
    position, rest = stream.offset, stream.length
    for span in spans:
        if rest == 0:
            break
        if position >= span.length:
            position -= span.length
            continue
        length = min(rest, span.length - position)
        result.append(Extent(span.offset + position, length))
        position, rest = 0, rest - length
    if rest:
        raise ValueError(f"spans: stream bytes [{stream.offset}, {stream.end}) run past their end")
    return result


def stream_offset(spans: Sequence[Span], landing: Extent) -> int | None:
    """Stream position of landing bytes; None unless they lie inside one span."""
    before = 0
    for span in spans:
        if span.offset <= landing.offset and landing.end <= span.offset + span.length:
            return before + landing.offset - span.offset
        before += span.length
    return None
