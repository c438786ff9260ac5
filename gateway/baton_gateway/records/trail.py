"""The trail of a request: when which thing happened to it, noted while it runs. Plain values without content.

Times are seconds of the event loop's clock. Noting is cheap, because every request is noted: what the notes mean is
found out by `record_builder`, when somebody asks.
"""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass, field

import msgspec

from baton_gateway.records.interruptions import Interruption, Interruptions
from baton_wire.messages.values import LegTimes

MAX_MARKS = 256
"""Marks of one request. Later ones are counted; the time between is then explained less precisely."""
MAX_GAPS = 8
"""The longest gaps between tokens that a trail keeps. All slow ones are counted."""
SLOW_GAP_S = 0.1
"""The gap that counts as slow where no target is set."""


class Moment(enum.IntEnum):
    """The kinds of marks."""

    OFFERED = 1  # its body was read and parsed
    ADMITTED = 2
    RENDERED = 3
    TOKENISED = 4
    COMPILED = 5
    PREPARED = 6
    PARKED = 7  # no workers serve its model
    UNPARKED = 8
    HELD = 9  # its turn at the workers has not come
    ROUTED = 10
    UNROUTED = 11  # no pair of workers can take it
    FIRST = 12  # a leg's first tokens arrived
    FAILED = 13  # an attempt ended without its result
    ENDED = 14
    CLOSED = 15  # its client has the whole answer, or is gone


class Mark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One thing that happened. `worker`: who sent the first tokens, or who is at fault for a failed attempt."""

    at_s: float
    moment: int
    run: bytes = b""
    attempt: int = 0
    worker: bytes = b""
    decode: bytes = b""
    text: str = ""
    """A route, a reason, or why it waits: from closed sets."""
    times: LegTimes | None = None


class Gap(msgspec.Struct, frozen=True, array_like=True, gc=False, order=True):
    """A gap between two tokens of a choice. Gaps are ordered by their length."""

    seconds: float
    until_s: float
    choice: int


@dataclass(slots=True, eq=False)
class Trail:
    """The trail of one request so far."""

    began_s: float
    """The head of the HTTP request was read."""
    gap_target_s: float = SLOW_GAP_S
    """Longer gaps between tokens are slow."""
    marks: list[Mark] = field(default_factory=list)
    left_out: int = 0
    """Marks beyond `MAX_MARKS`."""
    gaps: list[Gap] = field(default_factory=list)
    """The longest slow gaps, as a heap."""
    num_slow: int = 0
    expected: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    """The attempt of each leg, by run and worker, whose first tokens have not arrived."""
    landing: set[tuple[bytes, bytes]] = field(default_factory=set)
    """The run and worker of each leg that gets the KV of another worker."""
    last_run: bytes = b""
    """The run of the latest first tokens."""
    preempted: list[LegTimes] = field(default_factory=list)
    """The last times of legs that were preempted."""
    unread_from_s: float | None = None
    """Since when its client had not read when it was cut off for that; None: it was not."""

    def mark(self, at_s: float, moment: Moment, run: bytes = b"", text: str = "") -> None:
        """Note that something happened."""
        self._add(Mark(at_s, moment, run, 0, b"", b"", text))

    def routed(self, at_s: float, run: bytes, attempt: int, prefill: bytes | None, decode: bytes, route: str) -> None:
        """Note that an attempt was sent to its workers."""
        self._add(Mark(at_s, Moment.ROUTED, run, attempt, prefill or b"", decode, route))
        self.expected[run, decode] = attempt
        if prefill is not None:
            self.expected[run, prefill] = attempt
            self.landing.add((run, decode))
        else:
            self.landing.discard((run, decode))

    def arrived(
        self, at_s: float, run: bytes, worker: bytes, times: LegTimes | None, *, has_more: bool = False
    ) -> None:
        """Note the first tokens of a leg, and the last times of one that was preempted. `has_more`: it is a first
        token, and the choice goes on. Where that came with the KV, times come with the next one."""
        if has_more and times is None and (run, worker) in self.landing:
            return
        attempt = self.expected.pop((run, worker), None)
        if attempt is not None:
            self.last_run = run
            self._add(Mark(at_s, Moment.FIRST, run, attempt, worker, b"", "", times))
        elif times is not None and times.preemptions and len(self.preempted) < MAX_GAPS:
            self.preempted.append(times)

    def failed(self, at_s: float, run: bytes, attempt: int, at_fault: bytes, reason: str) -> None:
        """Note that an attempt ended without its result."""
        self._add(Mark(at_s, Moment.FAILED, run, attempt, at_fault, b"", reason))
        for leg in [leg for leg, number in self.expected.items() if leg[0] == run and number == attempt]:
            del self.expected[leg]

    def slow(self, seconds: float, until_s: float, choice: int) -> None:
        """Note a gap between tokens that is longer than its target."""
        self.num_slow += 1
        gap = Gap(seconds, until_s, choice)
        if len(self.gaps) < MAX_GAPS:
            heapq.heappush(self.gaps, gap)
        elif self.gaps[0] < gap:
            heapq.heapreplace(self.gaps, gap)

    def _add(self, mark: Mark) -> None:
        if len(self.marks) < MAX_MARKS or mark.moment >= Moment.ENDED:
            self.marks.append(mark)
        else:
            self.left_out += 1


class TrailFacts(msgspec.Struct, frozen=True, array_like=True):
    """Facts about a request at its end."""

    id: str
    """As its client knows it."""
    tenant: str
    model: str
    outcome: str
    code: str
    """The error code that its client got; empty: none."""
    started_at: float
    """Unix seconds at which the head of its HTTP request was read."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None
    first_token_s: float | None = None
    """From the request's arrival to its first token."""
    tpot_s: float | None = None
    """The longest mean gap between tokens of its choices."""
    ttft_target_s: float | None = None
    tpot_target_s: float | None = None
    trace_id: str = ""
    """Empty: it belongs to no trace."""
    parent_id: str = ""
    """The client's span in that trace; empty: none."""
    is_sampled: bool = False
    """Its trace is exported."""
    operation: str = ""
    """The kind of work, as the conventions of OpenTelemetry name it."""
    unanswered_s: float | None = None
    """From the request's arrival to its client's leaving without a first token; None: it had one, or needed none."""
    answer: str = ""
    """The digits of its answer's id; empty: no answer was begun."""

    @property
    def missed(self) -> bool:
        """Return whether it missed a target, or ended without an answer that its client waited for."""
        waited_s = self.unanswered_s if self.first_token_s is None else self.first_token_s
        is_late = _is_beyond(waited_s, self.ttft_target_s)
        is_slow = _is_beyond(self.tpot_s, self.tpot_target_s)
        return is_late or is_slow or self.outcome in ("failed", "refused")


def _is_beyond(seconds: float | None, target_s: float | None) -> bool:
    return seconds is not None and target_s is not None and seconds > target_s


class KeptTrail(msgspec.Struct, frozen=True, array_like=True):
    """A whole trail, as it is kept after the end of its request."""

    facts: TrailFacts
    began_s: float
    marks: list[Mark]
    gaps: list[Gap]
    num_slow: int
    left_out: int
    last_run: bytes
    preempted: list[LegTimes]
    gap_target_s: float
    stops: list[Interruption] = []
    """The interruptions that it may have waited for."""
    unread_from_s: float | None = None
    """As in `Trail`."""


def keep(trail: Trail, facts: TrailFacts, interruptions: Interruptions | None = None) -> KeptTrail:
    """Build the kept form of a trail. `interruptions`: those of this process; None: not known."""
    workers = (epoch for mark in trail.marks for epoch in (mark.worker, mark.decode))
    return KeptTrail(
        facts,
        trail.began_s,
        trail.marks,
        sorted(trail.gaps, reverse=True),
        trail.num_slow,
        trail.left_out,
        trail.last_run,
        trail.preempted,
        trail.gap_target_s,
        [] if interruptions is None else interruptions.during(trail.began_s, trail.marks[-1].at_s, workers),
        trail.unread_from_s,
    )
