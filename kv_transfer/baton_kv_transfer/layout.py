"""Arithmetic of the hand-over's byte stream: units, pieces, bytes, and where they lie in pool and landing region.

A hand-over moves whole *units* of `unit_tokens` token slots, the smaller of the two workers' block sizes, and layer
group by layer group, so that the first layers can travel while the last are computed. The stream is
`[layer group][unit][layer][K,V][kv_head][slot][dim]`, whatever the pools look like inside: adjacent units of one layer
group are one stretch of it. A *piece* is the part of one unit, layer, K or V: the grain of checksums. Numbers only: no
memory is touched here.

Where a model's layers are in several KV groups, the blocks of each are cut into equally many parts. A layer group is
one part of one KV group: the first parts of all come first. Of a KV group with a window only the units of the window
at the end are moved, so layer groups differ in length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton_wire.errors import UnfitPairError
from baton_wire.kv_shape import KvGeometry, PoolPart, Units, first_seen
from baton_wire.messages.pair_link import Span

CHECKSUM_BYTES = 8


@dataclass(frozen=True, slots=True)
class Leg:
    """The heads that one rank of a worker exchanges with one rank of its peer."""

    rank: int = 0
    """The peer's."""
    heads: range | None = None
    """Heads of this rank's pool; None: all."""


ALL = Leg()
"""Between workers of one rank."""


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

    >>> geometry = KvGeometry(layers=4, kv_heads=2, head_dim=8, element_bytes=2, block_tokens=16)
    >>> layout = StreamLayout(geometry, unit_tokens=16, start_tokens=32, end_tokens=100, groups=2)
    >>> layout.first_unit, layout.end_unit, layout.stream_bytes
    (2, 7, 20480)
    >>> layout.extent(1, 2, 3)  # the first unit of the second layer group
    Extent(offset=10240, length=2048)

    The last unit is sent whole even if the sequence ends inside it. Raises ValueError on an impossible range, and where
    a unit is less than a block of a KV group with a window: its first block would arrive in part.
    """

    geometry: KvGeometry
    unit_tokens: int
    start_tokens: int
    end_tokens: int
    groups: int = 1
    """Layer groups: the stream holds all units of the first, then all units of the next."""
    first_head: int = 0
    """The pool's head that is the stream's first; `geometry.kv_heads` counts the heads of the stream."""

    def __post_init__(self) -> None:
        if self.unit_tokens < 1 or self.geometry.block_tokens % self.unit_tokens:
            raise ValueError(
                f"unit_tokens: {self.unit_tokens} does not divide the block of {self.geometry.block_tokens}"
            )
        if self.start_tokens < 0 or self.start_tokens % self.unit_tokens:
            raise ValueError(f"start_tokens: {self.start_tokens} is not a multiple of the unit {self.unit_tokens}")
        if self.end_tokens < self.start_tokens:
            raise ValueError(f"end_tokens: {self.end_tokens} is before start_tokens {self.start_tokens}")
        kinds = len(self.geometry.windows)
        if self.groups < 1 or self.groups % kinds or self.geometry.layers % (self.groups // kinds):
            of = "" if kinds == 1 else f" in each of {kinds} KV groups"
            raise ValueError(f"groups: {self.groups} does not divide {self.geometry.layers} layers{of}")
        if self.geometry.windows != (None,) and self.unit_tokens != self.geometry.block_tokens:
            raise ValueError(
                f"unit_tokens: {self.unit_tokens}; with windows only whole blocks of {self.geometry.block_tokens} move"
            )

    @property
    def first_unit(self) -> int:
        return self.start_tokens // self.unit_tokens

    def group_first_unit(self, group: int) -> int:
        """First unit of a layer group."""
        seen = first_seen(self.end_tokens, self.geometry.windows[self.kv_group(group)])
        return max(self.first_unit, seen // self.unit_tokens)

    def group_units(self, group: int) -> int:
        """Number of units of a layer group."""
        return self.end_unit - self.group_first_unit(group)

    def kv_group(self, group: int) -> int:
        """The KV group that a layer group is a part of."""
        return group % len(self.geometry.windows)

    @property
    def end_unit(self) -> int:
        return -(-self.end_tokens // self.unit_tokens)

    @property
    def units(self) -> int:
        """Number of units of a KV group without a window."""
        return self.end_unit - self.first_unit

    @property
    def grain_bytes(self) -> int:
        """The landing bytes are granted in multiples of it: the layers of a unit, or of a layer group's if these differ
        in length."""
        whole = self.geometry.token_bytes * self.unit_tokens
        return whole if self.geometry.windows == (None,) else self.group_unit_bytes

    @property
    def group_layers(self) -> int:
        return self.geometry.layers * len(self.geometry.windows) // self.groups

    @property
    def group_unit_bytes(self) -> int:
        """Bytes of one unit in one layer group."""
        return self.geometry.token_bytes * self.unit_tokens * len(self.geometry.windows) // self.groups

    @property
    def piece_bytes(self) -> int:
        return self.group_unit_bytes // (self.group_layers * 2)

    @property
    def pieces(self) -> int:
        return self.stream_bytes // self.piece_bytes

    @property
    def checksum_bytes(self) -> int:
        return self.pieces * CHECKSUM_BYTES

    @property
    def stream_bytes(self) -> int:
        return self.bytes_before(self.groups)

    def bytes_before(self, group: int) -> int:
        """Stream bytes of the layer groups before `group`, which may be the end."""
        return sum(self.group_units(earlier) for earlier in range(group)) * self.group_unit_bytes

    def whole_units(self, computed_tokens: int) -> int:
        """End of the units that can be sent once KV of [0, computed_tokens) is computed; a partial last one at the
        end."""
        if computed_tokens >= self.end_tokens:
            return self.end_unit
        return max(self.first_unit, computed_tokens // self.unit_tokens)

    def part(self, group: int) -> PoolPart:
        """The part of the pool's blocks that a layer group holds."""
        first = group // len(self.geometry.windows) * self.group_layers
        return PoolPart(first, first + self.group_layers, self.first_head, self.first_head + self.geometry.kv_heads)

    def end_layer(self, group: int) -> int:
        """Number of the model's first layers whose KV must be complete for the layer group's KV to be complete."""
        part = self.part(group)
        if not self.geometry.groups:
            return part.end_layer
        layers = self.geometry.groups[self.kv_group(group)].layers[: part.end_layer]
        return layers[-1] + 1

    def extent(self, group: int, first_unit: int, end_unit: int) -> Extent:
        """Where these units of a layer group lie in the stream. Raises ValueError outside it."""
        if not 0 <= group < self.groups:
            raise ValueError(f"group: {group} is not in [0, {self.groups})")
        first = self.group_first_unit(group)
        if not first <= first_unit <= end_unit <= self.end_unit:
            raise ValueError(f"units [{first_unit}, {end_unit}) are not in [{first}, {self.end_unit})")
        size = self.group_unit_bytes
        return Extent(self.bytes_before(group) + (first_unit - first) * size, (end_unit - first_unit) * size)

    def piece_at(self, index: int) -> tuple[int, int, int]:
        """(unit, the model's layer, 0 for K or 1 for V) of the stream's index-th piece; a layer beyond the model's
        where a KV group has fewer layers than its blocks have room for."""
        per_unit = self.group_layers * 2
        group = next(at for at in range(self.groups) if index * self.piece_bytes < self.bytes_before(at + 1))
        unit, rest = divmod(index - self.bytes_before(group) // self.piece_bytes, per_unit)
        layer, value = divmod(rest, 2)
        layer += self.part(group).first_layer
        if self.geometry.groups:
            own = self.geometry.groups[self.kv_group(group)].layers
            layer = own[layer] if layer < len(own) else self.geometry.model_layers
        return self.group_first_unit(group) + unit, layer, value


def layer_groups(geometry: KvGeometry, stream_bytes: int, group_bytes: int, max_groups: int) -> int:
    """Number of layer groups for a stream: as many as leave each `group_bytes`, at most `max_groups`, but one for each
    KV group."""
    kinds, layers = len(geometry.windows), geometry.layers
    most = max(1, min(max_groups, stream_bytes // max(1, group_bytes)) // kinds)
    return kinds * max(count for count in range(1, layers + 1) if layers % count == 0 and count <= most)


def group_blocks(blocks: Sequence[int], layout: StreamLayout, group: int) -> Sequence[int]:
    """The blocks that a layer group's units lie in, of a sequence's flat table."""
    return blocks[layout.kv_group(group) :: len(layout.geometry.windows)]


def source_extents(geometry: KvGeometry, units: Units) -> list[Extent]:
    """Where the units lie in the pool when a unit is exactly one block; neighbours are joined.

    Raises ValueError when the block table is too short.
    """
    blocks, part = units.blocks, units.part
    if units.end > len(blocks):
        raise ValueError(f"blocks: {len(blocks)} given, unit {units.end - 1} needs {units.end}")
    side = geometry.layer_bytes // 2  # K or V of one layer
    head = side // geometry.kv_heads
    length = (part.end_head - part.first_head) * head
    sides = range(2 * part.first_layer, 2 * part.end_layer)
    inside = joined(Extent(at * side + part.first_head * head, length) for at in sides)  # one with all heads
    starts = (block * geometry.block_bytes for block in blocks[units.first : units.end])
    return joined(Extent(start + extent.offset, extent.length) for start in starts for extent in inside)


def joined(extents: Iterator[Extent] | Sequence[Extent]) -> list[Extent]:
    """The same bytes in the same order with adjacent extents made one."""
    result: list[Extent] = []
    for extent in extents:
        if result and result[-1].end == extent.offset:
            result[-1] = Extent(result[-1].offset, result[-1].length + extent.length)
        else:
            result.append(extent)
    return result


def paired(source: Sequence[Extent], target: Sequence[Extent]) -> list[tuple[int, int, int]]:
    """(source offset, target offset, length) of the stretches that lie whole on both sides, in order.

    Raises ValueError when the two are not equally long.
    """
    if sum(extent.length for extent in source) != sum(extent.length for extent in target):
        raise ValueError(
            f"write: {sum(extent.length for extent in source)} source bytes "
            f"for {sum(extent.length for extent in target)} landing bytes"
        )
    result: list[tuple[int, int, int]] = []
    sources = iter(source)
    offset, rest = 0, 0
    for extent in target:
        at, left = extent.offset, extent.length
        while left:
            if not rest:
                following = next(sources)
                offset, rest = following.offset, following.length
                continue
            length = min(left, rest)
            result.append((offset, at, length))
            offset, rest, at, left = offset + length, rest - length, at + length, left - length
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
