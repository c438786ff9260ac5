"""How a request ended and what it took, as metrics count it."""

from __future__ import annotations

import enum

import msgspec


class TraceResult(enum.Enum):
    """The end of a sampled trace."""

    EXPORTED = "exported"
    FAILED = "failed"
    """The collector did not take it."""
    DROPPED = "dropped"
    """Too many were waiting for the collector."""


class LedgerResult(enum.Enum):
    """The end of a request in the ledger."""

    WRITTEN = "written"
    UNRECORDED = "unrecorded"
    """Served without an entry: none was free."""
    REFUSED = "refused"
    """Refused: no entry was free, and the ledger is required."""


class Outcome(enum.StrEnum):
    """How a request ended; a closed set that also labels metrics."""

    FINISHED = "finished"
    REFUSED = "refused"
    """Refused before any work was done for it."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    """The client went away or read too slowly."""


class RequestTotals(msgspec.Struct, frozen=True):
    """Tokens and attempts of one request from its arrival to its end."""

    prompt_tokens: int
    completion_tokens: int
    attempts: int
    migrations: int
    conflicts: int
    cached_tokens: int | None = None
    """Prompt tokens that its workers had cached, by their reports; None: not reported."""
    cacheable_tokens: int = 0
    """Prompt tokens that some worker had cached when they were routed."""
