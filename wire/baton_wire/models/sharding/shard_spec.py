"""The spec of one rank's share of a model: fewer heads and narrower feed-forward blocks, all else as in the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from baton_wire.kv_shape import held_kv_heads
from baton_wire.models.decoder_spec import Attention, DecoderSpec, Dense, FeedForward, LayerSpec

HEADS: Final = "attention heads"
BLOCK_COLUMNS: Final = "columns of the feed-forward blocks"
EXPERT_COLUMNS: Final = "columns of an expert"
SHARED_COLUMNS: Final = "columns of the shared expert"
"""Names of these sizes in refusals."""


def equal_part(size: int, rank: int, ranks: int, what: str) -> range:
    """A rank's adjacent rows or columns of `size`. Raises ValueError, which says what cannot be shared out equally."""
    if size % ranks:
        raise ValueError(f"{size} {what} do not divide by it")
    length = size // ranks
    return range(rank * length, (rank + 1) * length)


def shard_spec(config: DecoderSpec, rank: int, ranks: int) -> DecoderSpec:
    """The spec of the rank's share; the vocabulary stays whole. Raises ValueError, which says what cannot be shared out
    equally."""
    if ranks == 1:
        return config
    return replace(config, layers=tuple(_shard_layer(layer, rank, ranks) for layer in config.layers))


def _shard_layer(layer: LayerSpec, rank: int, ranks: int) -> LayerSpec:
    return replace(
        layer,
        mixer=_shard_attention(layer.mixer, rank, ranks),
        feed_forward=_shard_feed_forward(layer.feed_forward, rank, ranks),
    )


def _shard_attention(mixer: Attention, rank: int, ranks: int) -> Attention:
    q_heads = len(equal_part(mixer.q_heads, rank, ranks, HEADS))
    return replace(mixer, q_heads=q_heads, kv_heads=len(held_kv_heads(mixer.kv_heads, rank, ranks)))


def _shard_feed_forward(block: FeedForward, rank: int, ranks: int) -> FeedForward:
    if isinstance(block, Dense):
        return _shard_dense(block, rank, ranks, BLOCK_COLUMNS)
    inner, shared = len(equal_part(block.inner, rank, ranks, EXPERT_COLUMNS)), block.shared
    if shared is not None:
        shared = replace(shared, block=_shard_dense(shared.block, rank, ranks, SHARED_COLUMNS))
    return replace(block, inner=inner, shared=shared)


def _shard_dense(block: Dense, rank: int, ranks: int, what: str) -> Dense:
    return replace(block, inner=len(equal_part(block.inner, rank, ranks, what)))
