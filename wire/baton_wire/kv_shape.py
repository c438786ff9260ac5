"""The shape of a KV pool, as its owner, the transfer and the pair fingerprint need it. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers of a model that share block tables."""

    window: int | None
    """How many positions, the query's own included, they attend to; None is all."""
    layers: tuple[int, ...]
    """Numbers of the model's layers, in the order that they have in a block."""


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where the KV of one of a model's layers is."""

    kv_group: int
    layer: int
    """Within that group's blocks."""


@dataclass(frozen=True, slots=True)
class KvGeometry:
    """Shape of a pool's blocks, `[layers, 2, kv_heads, block_tokens, head_dim]` elements each.

    A block holds the KV of one group of layers; all groups take blocks from one pool. Sequence tables are flat: the
    blocks of all groups for the first `block_tokens` tokens, then those for the next.

    Raises ValueError naming the field when one is not positive.
    """

    layers: int
    """Layers of one block."""
    kv_heads: int
    head_dim: int
    element_bytes: int
    block_tokens: int
    groups: tuple[KvGroup, ...] = ()
    """None: one group of all layers, without a window."""

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "element_bytes", "block_tokens"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: {getattr(self, field)} is not positive")

    @property
    def token_bytes(self) -> int:
        """KV bytes of one token over all layers of one block."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.element_bytes

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer (K and V) of one block."""
        return self.block_bytes // self.layers

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Window of each group."""
        return tuple(group.window for group in self.groups) or (None,)

    @property
    def places(self) -> tuple[LayerPlace, ...]:
        """Place of each of the model's layers."""
        return layer_places(self.groups, self.layers)

    @property
    def model_layers(self) -> int:
        """Layers of all groups together."""
        return sum(len(group.layers) for group in self.groups) or self.layers

    def blocks_held(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens keeps: a group with a window keeps only those that are still
        seen."""
        end = -(-tokens // self.block_tokens)
        return sum(end - first_seen(tokens, window) // self.block_tokens for window in self.windows)

    def token_blocks(self, blocks: int, tokens: int, *, keeps_all: bool) -> int:
        """How many stretches of `block_tokens` tokens `blocks` blocks hold, of sequences of `tokens` tokens.

        `keeps_all`: while they are computed groups with a window have all their blocks too.
        """
        stretches = -(-tokens // self.block_tokens)
        held = stretches * len(self.windows) if keeps_all else self.blocks_held(tokens)
        return blocks * stretches // held

    @property
    def whole(self) -> PoolPart:
        """All layers and heads."""
        return PoolPart(0, self.layers, 0, self.kv_heads)


def layer_places(groups: tuple[KvGroup, ...], layers: int) -> tuple[LayerPlace, ...]:
    """Where the KV of each of a model's layers is; without groups the model has `layers` layers."""
    if not groups:
        return tuple(LayerPlace(0, layer) for layer in range(layers))
    by_layer: dict[int, LayerPlace] = {}
    for number, group in enumerate(groups):
        by_layer |= {layer: LayerPlace(number, index) for index, layer in enumerate(group.layers)}
    return tuple(by_layer[layer] for layer in sorted(by_layer))


def heads_fit(kv_heads: int, ranks: int) -> bool:
    """Return whether the ranks of one worker can share this many KV heads: one number divides the other."""
    return min(kv_heads, ranks) >= 1 and (kv_heads % ranks == 0 or ranks % kv_heads == 0)


def held_kv_heads(kv_heads: int, rank: int, ranks: int) -> range:
    """The model's KV heads that a rank holds: adjacent ones in order; with fewer heads than ranks, adjacent ranks hold
    the same head. Raises ValueError, which says why they cannot be shared out."""
    if not heads_fit(kv_heads, ranks):
        raise ValueError(f"{kv_heads} KV heads neither divide by it nor divide it")
    first = rank * kv_heads // ranks
    return range(first, first + max(1, kv_heads // ranks))


def first_seen(tokens: int, window: int | None) -> int:
    """The first position that position `tokens` attends to, or a later one."""
    return 0 if window is None else max(0, tokens - window + 1)


@dataclass(frozen=True, slots=True)
class PoolPart:
    """Layers [first_layer, end_layer) and heads [first_head, end_head) of a pool's blocks."""

    first_layer: int
    end_layer: int
    first_head: int
    end_head: int


@dataclass(frozen=True, slots=True)
class Units:
    """Units [first, end) of one sequence: what a hand-over moves at once.

    Unit u covers tokens [u * tokens, (u + 1) * tokens) of the sequence; `part` names the layers and heads that move.
    """

    blocks: Sequence[int]
    """The sequence's block table in logical order."""
    tokens: int
    first: int
    end: int
    part: PoolPart
    groups: int = 1
    """Number of equal groups of the part's layers; a stream holds all units of the first group, then of the next."""

    @property
    def count(self) -> int:
        return self.end - self.first
