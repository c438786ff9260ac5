"""What a worker shows of itself: immutable snapshots that any thread may read, and the shape of `/state`."""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.scheduler import SchedulerStats
from baton_kv_transfer.transports.bandwidth import LinkReport


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """What other threads may know of the engine, as of its last turn."""

    stats: SchedulerStats
    steps: int
    step_s: float
    """Smoothed duration of recent steps; 0 before the first."""
    turned_s: float
    """Monotonic time of the last turn of the loop, with or without work."""
    stepped_s: float
    """Monotonic time of the last completed step; the start time before the first."""
    work_since_s: float
    """Monotonic time since when there has been work without a pause; meaningless while idle."""
    computing_tokens: int = 0
    """Prompt tokens of launched steps."""
    arriving: int = 0
    """Requests that the engine was given and has not looked at: it may be in a step for a long time."""
    arriving_tokens: int = 0
    """Of those that are to be computed."""


@dataclass(frozen=True, slots=True)
class TransferView:
    """The KV transfer so far, in units that `baton status` and `make demo` show."""

    transport: str | None
    """How bytes travel to or from the linked peers; None while there is none."""
    peers: int
    handovers: int
    """Verified ones."""
    kv_bytes_sent: int
    kv_bytes_early: int
    """Of the bytes sent, those that were there before the prompt's last token was computed."""
    kv_bytes_received: int
    altered_frames: int = 0
    """Frames of peers that did not arrive as they were sent."""
    links: tuple[LinkReport, ...] = ()
    """What a prefill worker knows of its ways to decode workers; a decode worker leaves measuring to them."""


@dataclass(frozen=True, slots=True)
class StateView:
    """`/state`: what `baton status` shows. Cached blocks count as free: they are given out when needed."""

    role: str
    epoch: str
    pid: int
    revision: str
    blocks_total: int
    blocks_free: int
    block_tokens: int
    block_bytes: int
    running: int
    waiting: int
    waiting_tokens: int
    """Prompt tokens that no step has been given yet."""
    draining: bool
    transfer: TransferView
