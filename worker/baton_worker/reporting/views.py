"""Views of a worker: immutable snapshots that any thread may read, and the form of `/state`."""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.scheduler import SchedulerStats
from baton_kv_transfer.transports.bandwidth import LinkReport


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The engine's state as of its last turn, for other threads."""

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
    """Requests that were posted and that the engine has not taken yet: a step may keep it busy for a long time."""
    arriving_tokens: int = 0
    """Prompt tokens to compute of the arriving requests."""


@dataclass(frozen=True, slots=True)
class TransferView:
    """The KV transfer so far, in units that `baton status` and `make demo` show."""

    transport: str | None
    """How bytes travel to or from the linked peers; None while there is none."""
    peers: int
    handovers: int
    """Verified hand-overs."""
    kv_bytes_sent: int
    kv_bytes_early: int
    """The part of `kv_bytes_sent` that had arrived before the prompt's last token was computed."""
    kv_bytes_received: int
    altered_frames: int = 0
    """Frames of peers that did not arrive as they were sent."""
    links: tuple[LinkReport, ...] = ()
    """A prefill worker's measurements of its links to decode workers, which measure nothing themselves."""


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
    """Prompt tokens that are in no step yet."""
    draining: bool
    transfer: TransferView
