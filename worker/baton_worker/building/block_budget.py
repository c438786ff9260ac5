"""Numbers of KV blocks and landing bytes of a worker, from the model's sizes and the available memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from baton_wire.kv_shape import KvGeometry
from baton_worker.errors import ConfigError

CPU_DEFAULT_BYTES = 1 << 30
"""Without --kv-cache-bytes a CPU worker takes at most this much, so that several share a laptop."""
MEMORY_SHARE = 0.25
"""… and at most this share of the free memory, since P, D and gateway start at the same time.

CUDA workers own their GPU: 0.9.
"""
CUDA_MEMORY_SHARE = 0.9
LANDING_SEQUENCES = 2
"""The landing region holds at least this many hand-overs of full length, so that one can land while another is
scattered.
"""
LANDING_DEFAULT_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Capacity:
    blocks: int
    landing_bytes: int


def kv_budget(asked: int | None, free_bytes: int, device: str) -> int:
    """Bytes for KV blocks: what was asked for, else a share of what is free."""
    if asked is not None:
        if asked > free_bytes:
            raise ConfigError(
                f"argument --kv-cache-bytes: {asked} is more than the {free_bytes} bytes that are free on {device}"
            )
        return asked
    if device == "cpu":
        return min(CPU_DEFAULT_BYTES, int(free_bytes * MEMORY_SHARE))
    return int(free_bytes * CUDA_MEMORY_SHARE)


def decide(
    geometry: KvGeometry, max_context_tokens: int, budget_bytes: int, landing_asked: int | None, *, lands: bool
) -> Capacity:
    """Split the budget. Raises ConfigError when not even one sequence of full length fits.

    The pool must hold one sequence of `max_context_tokens` while it is computed, in all groups of layers (then the
    oldest request always makes progress) and, on a decode worker (`lands`), the landing region one hand-over of that
    length.
    """
    per_block = geometry.block_bytes
    per_sequence = -(-max_context_tokens // geometry.block_tokens) * len(geometry.windows)
    landing = 0
    if lands:
        landing = _landing(per_block * geometry.blocks_held(max_context_tokens), budget_bytes, landing_asked)
    blocks = (budget_bytes if landing_asked is not None else budget_bytes - landing) // per_block
    if blocks < per_sequence:
        needed = per_block * per_sequence + (0 if landing_asked is not None else landing)
        raise ConfigError(
            f"argument --kv-cache-bytes: {budget_bytes} bytes hold {max(blocks, 0)} blocks of {geometry.block_tokens} "
            f"tokens; one sequence of --max-context-tokens {max_context_tokens} needs {per_sequence} ({needed} bytes)"
        )
    return Capacity(blocks, landing)


def _landing(sequence_bytes: int, budget_bytes: int, asked: int | None) -> int:
    if asked is None:
        return max(
            sequence_bytes, min(int(budget_bytes * LANDING_DEFAULT_SHARE), LANDING_SEQUENCES * 8 * sequence_bytes)
        )
    if asked < sequence_bytes:
        raise ConfigError(
            f"argument --landing-bytes: {asked} is less than one hand-over of full length, {sequence_bytes} bytes"
        )
    return asked
