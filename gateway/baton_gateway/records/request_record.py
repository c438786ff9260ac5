"""The record of a request: spans that tile its time, its attempts, its slow gaps. No key, prompt or answer is in it."""

from __future__ import annotations

from collections import Counter

import msgspec


class RecordSpan(msgspec.Struct, frozen=True):
    """A piece of the request's time, in nanoseconds since its beginning."""

    part: str
    """A `Part`."""
    start_ns: int
    duration_ns: int
    detail: str = ""
    worker: str = ""
    """The worker that it was spent at, or that is blamed: the first digits of its epoch."""


class RecordedAttempt(msgspec.Struct, frozen=True):
    """One attempt at a pair of workers."""

    number: int
    route: str
    prefill: str
    """Empty: the decode worker computed the prompt."""
    decode: str
    sent_ns: int
    ended_ns: int | None = None
    """When it ended without its result; None: it did not."""
    reason: str = ""
    blamed: str = ""
    """The worker at fault."""
    chunks: int | None = None
    """Chunks in which its prompt was computed; None: not reported."""


class SlowGap(msgspec.Struct, frozen=True):
    """A gap between two tokens that was longer than its target."""

    start_ns: int
    duration_ns: int
    choice: int


class RequestRecord(msgspec.Struct, frozen=True):
    """One request from the head of its HTTP request to the end of its answer."""

    id: str
    tenant: str
    model: str
    outcome: str
    code: str
    started_at: float
    duration_ns: int
    spans: list[RecordSpan]
    """They tile the duration: each begins where the last one ends."""
    attempts: list[RecordedAttempt]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    ttft_s: float | None
    tpot_s: float | None
    ttft_target_s: float | None
    tpot_target_s: float | None
    missed: bool
    slow_gaps: list[SlowGap]
    """The longest ones."""
    num_slow_gaps: int
    gap_target_s: float
    migrations: int = 0
    missing: list[str] = []
    """Parts that the record should have and has not."""
    trace_id: str = ""
    workers: dict[str, str] = {}
    """Addresses of the workers; only the operator sees them."""

    def parts(self) -> list[tuple[str, int]]:
        """Return the nanoseconds of each part, the largest first."""
        sums: Counter[str] = Counter()
        for span in self.spans:
            sums[span.part] += span.duration_ns
        return sums.most_common()
