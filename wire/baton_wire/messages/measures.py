"""Measurements that travel from workers and gateways to the process that sizes the pools: bounded, mergeable, plain
numbers."""

from __future__ import annotations

import enum
from typing import Annotated

from msgspec import Meta

from baton_wire.messages.values import (
    Address,
    ByteCount,
    Count,
    Epoch,
    NestedValue,
    PositiveCount,
    Role,
    Seconds,
    TokenCount,
    check_worker,
)

MAX_TIMINGS = 32
MAX_SHAPES = 64
NUM_WINDOWS = 12
"""Windows of `ContextCounts`; `baton_wire.rules.context_reuse` has their lengths."""

Amount = Annotated[float, Meta(ge=0, le=1e18)]

SKETCH_RATIO = 1.02
"""Bin k holds values in (SKETCH_RATIO^(k-1), SKETCH_RATIO^k]."""
MAX_BINS = 1_536
Bin = Annotated[int, Meta(ge=-1_000, le=1_500)]
Total = Annotated[float, Meta(ge=0, le=1e18)]


class SketchData(NestedValue, frozen=True):
    """A sketch in a message."""

    ratio: Annotated[float, Meta(gt=1, le=2)] = SKETCH_RATIO
    total: Total = 0.0
    """Sum of the values."""
    bins: Annotated[tuple[tuple[Bin, Count], ...], Meta(max_length=MAX_BINS)] = ()
    """(bin, how many values fell into it)"""


class StepTiming(NestedValue, frozen=True):
    """One engine step: what was in it, and how long the device took."""

    step: Count
    """The step's number in the worker, so that a step reported by two gateways counts once."""
    prefill_tokens: Count
    prefill_pairs: Amount
    """(token, attended position) pairs of the prompts' chunks."""
    decode_rows: Count
    kv_tokens: Count
    """Tokens whose KV the decode rows read."""
    seconds: Seconds


class Lanes(NestedValue, frozen=True):
    """A prefill worker's links to decode workers, as far as they were measured: at least one was."""

    measured: PositiveCount
    too_slow: Count
    """Measured links that are slower than the configured minimum."""
    slowest: Annotated[str, Meta(max_length=64)]
    """Lane of the slowest link."""
    slowest_bytes_per_s: Amount


class RequestLengths(NestedValue, frozen=True):
    """Lengths of one sequence of a request."""

    prompt_tokens: TokenCount
    output_tokens: TokenCount
    cached_tokens: TokenCount
    """Prompt tokens that some worker probably had in its prefix cache."""


class WorkerCondition(enum.StrEnum):
    """How a gateway sees a worker that it has linked."""

    LIVE = "live"
    SUSPECT = "suspect"
    DRAINING = "draining"


class WorkerMeasures(NestedValue, frozen=True):
    """One linked worker. Values that it has not reported yet are None."""

    role: Role
    epoch: Epoch
    template_hash: Annotated[str, Meta(min_length=1, max_length=64)]
    address: Address
    condition: WorkerCondition
    has_partner: bool
    """A live worker of the other role fits it."""
    running: Count | None
    waiting: Count | None
    waiting_tokens: Count | None
    """Prompt tokens still to be computed."""
    block_tokens: Annotated[int, Meta(ge=1, le=4_096)]
    blocks_total: Count
    blocks_free: Count | None
    kv_bytes: ByteCount | None
    """KV sent or received since the worker started."""
    startup_s: Seconds | None
    """From the start of its process until it was ready."""
    timings: Annotated[tuple[StepTiming, ...], Meta(max_length=MAX_TIMINGS)] = ()
    """Some of the steps since the last summary, drawn evenly."""
    lanes: Lanes | None = None
    """None: a decode worker, or nothing was measured."""
    flips: bool = False
    """The worker can change its role; `role` is the one that it reported last."""
    flip: Count = 0
    """Number of the last flip order that it carried out; 0: none."""

    def __post_init__(self) -> None:
        check_worker(self.role)


class ArrivalCounts(NestedValue, frozen=True):
    """Sequences that arrived since the last summary, by their first outcome. Together they are the demand."""

    accepted: Count
    queued: Count
    refused: Count
    prompt_tokens: SketchData
    output_tokens: SketchData
    cached_tokens: SketchData
    """Lengths of these sequences as far as they are known; outputs count once they ended."""
    sample: Annotated[tuple[RequestLengths, ...], Meta(max_length=MAX_SHAPES)] = ()
    """Some of the prompts, drawn evenly, each with the output length of one that ended lately."""


class ContextCounts(NestedValue, frozen=True):
    """How soon contexts were used again, since the last summary (`baton_wire.rules.context_reuse`). All values are
    tokens; tuples have one value for each window, ascending."""

    prompt_tokens: Count
    first_cached: Count
    """Beginnings of new contexts that workers had cached."""
    cacheable_tokens: Count
    """Tokens that some worker had cached when the prompts were routed."""
    missing_tokens: Count
    """Tokens that were not cached where the prompts were computed."""
    reused: Annotated[tuple[Count, ...], Meta(min_length=NUM_WINDOWS, max_length=NUM_WINDOWS)]
    """Tokens of contexts that were continued within each window."""
    live: Annotated[tuple[Count, ...], Meta(min_length=NUM_WINDOWS, max_length=NUM_WINDOWS)]
    """Tokens of the contexts that were used within each window before now."""


class Served(NestedValue, frozen=True):
    """Latencies that clients saw since the last summary, in seconds."""

    ttft: SketchData
    tpot: SketchData
    unserved: Count
    """Requests that were refused, or failed, for want of workers."""


class Backlog(NestedValue, frozen=True):
    """Requests that wait in this gateway now, those without a worker included."""

    waiting: Count
    parked: Count
    """Waiting requests that have no pair of workers yet."""
    oldest_s: Seconds
    """Age of the oldest of them; 0 without any."""
    tokens: Count | None
    """Prompt tokens that have to be computed for them, as an estimate; None: no prompt has been seen yet."""
