"""Limits and policies of one engine: what the scheduler may hold, how much it computes in a step, what has to wait.

Filled once by the worker's command line and the size of its KV pool; everything else of the engine reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_wire.kv_shape import first_seen


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of one engine. Raises ValueError naming the field, the value given and what is allowed.

    >>> config = EngineConfig(num_blocks=1_000, block_tokens=16, max_slots=32, max_context_tokens=4_096)
    >>> config.chunk, config.watermark_blocks, config.blocks_for(100)
    (2048, 10, 7)
    >>> EngineConfig(num_blocks=100, block_tokens=16, max_slots=32, max_context_tokens=4_096)
    Traceback (most recent call last):
    ...
    ValueError: num_blocks: 100 blocks of 16 tokens hold 1600 tokens, fewer than one sequence of max_context_tokens 4096
    """

    num_blocks: int
    """Blocks of the KV pool, each for one of the groups in `windows`."""
    block_tokens: int
    """Token slots of a block."""
    max_slots: int
    """Sequences in the batch: rows of the runner's per-sequence state. A request needs one per choice at once."""
    max_context_tokens: int
    """Longest sequence, prompt and output together. The pool must hold one such sequence."""
    max_step_tokens: int = 8_192
    """Prefill tokens of one step; decode rows come on top. Bounds the runner's activations and a step's length."""
    chunk_tokens: int | None = None
    """Chunk size of a prompt that is longer than `max_step_tokens`, while others wait. None: a quarter of that."""
    max_waiting: int = 1_024
    """Most prompts, and most reservations, that may wait; more are refused with NO_CAPACITY."""
    watermark_share: float = 0.01
    """Share of the pool that new sequences leave free while others run, so that the others can grow without
    preemption."""
    max_held_share: float = 0.5
    """Prefill worker: share of the pool for KV that no decode worker has granted room for; prompts beyond it wait.

    Less applies where the longest context would not fit next to it (`blocks_beside_a_context`).
    """
    prefix_cache: bool = True
    windows: tuple[int | None, ...] = (None,)
    """For each group of layers that share block tables, how many positions a token attends to, itself included; None:
    all."""
    one_step_ahead: bool = True
    """Plan the next step while the last one is still running (see `Stepper`)."""
    devices: int = 1
    """Devices that each step takes: the ranks of the worker."""

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_tokens", "max_slots", "max_step_tokens", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed, at least 1 is needed")
        if self.max_context_tokens < 2:
            raise ValueError(f"max_context_tokens: {self.max_context_tokens} is not allowed, at least 2 are needed")
        held = self.num_blocks // len(self.windows) * self.block_tokens
        if held < self.max_context_tokens:
            raise ValueError(
                f"num_blocks: {self.num_blocks} blocks of {self.block_tokens} tokens hold {held} tokens, "
                f"fewer than one sequence of max_context_tokens {self.max_context_tokens}"
            )
        if self.chunk_tokens is not None and not 1 <= self.chunk_tokens <= self.max_step_tokens:
            raise ValueError(
                f"chunk_tokens: {self.chunk_tokens} is not allowed, 1 to max_step_tokens {self.max_step_tokens}"
            )
        for name in ("watermark_share", "max_held_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed, 0 to 1")

    @property
    def chunk(self) -> int:
        return self.chunk_tokens if self.chunk_tokens is not None else max(1, self.max_step_tokens // 4)

    @property
    def watermark_blocks(self) -> int:
        return max(1, int(self.num_blocks * self.watermark_share))

    @property
    def max_held_blocks(self) -> int:
        return min(int(self.num_blocks * self.max_held_share), self.blocks_beside_a_context)

    @property
    def blocks_beside_a_context(self) -> int:
        """Most blocks for ungranted KV: they leave room for the longest context of a granted prompt.

        Otherwise both could deadlock: the granted prompt waits for memory here, and the held one for landing bytes that
        the granted one holds on the decode worker. Zero or less in a pool of one context: there every prompt waits for
        its grant.
        """
        longest = self.blocks_for(self.max_context_tokens) * len(self.windows)
        return self.num_blocks - longest - self.watermark_blocks

    @property
    def reaches(self) -> tuple[int | None, ...]:
        """For each group, how many blocks before its own a block's first token attends to; None: all."""
        return tuple(None if window is None else -(-(window - 1) // self.block_tokens) for window in self.windows)

    @property
    def distinct_windows(self) -> tuple[int, ...]:
        """The windows of all groups, each once."""
        return tuple(sorted({window for window in self.windows if window is not None}))

    @property
    def has_windows(self) -> bool:
        return self.windows != (None,)

    def blocks_for(self, tokens: int) -> int:
        """Blocks of each group that hold the KV of `tokens` tokens."""
        return -(-tokens // self.block_tokens)

    def first_blocks(self, tokens: int) -> tuple[int, ...]:
        """For each group, the first block that the token after `tokens` attends to."""
        return tuple(first_seen(tokens, window) // self.block_tokens for window in self.windows)
