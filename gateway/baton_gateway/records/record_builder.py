"""Builds the record of a request from its trail. Pure: marks in, spans out.

The spans follow the run that brought the first token, and later the run that ended last. Times that a worker reports
are on its own clock; the exchange of its first frame joins them with the gateway's: what the exchange took beyond the
worker's own time is divided between the way to it and the way back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from baton_gateway.records.interruptions import Pause, overlap, place_pauses
from baton_gateway.records.parts import Part
from baton_gateway.records.request_record import RecordedAttempt, RecordSpan, RequestRecord, SlowGap
from baton_gateway.records.trail import Gap, KeptTrail, Mark, Moment
from baton_wire.messages.values import LegTimes

EPOCH_DIGITS = 8
UNREAD = "its client did not read, and was cut off"
_PREPARATION = {
    Moment.OFFERED: Part.RECEIVING,
    Moment.ADMITTED: Part.QUEUED,
    Moment.RENDERED: Part.RENDERING,
    Moment.TOKENISED: Part.TOKENISING,
    Moment.COMPILED: Part.COMPILING,
    Moment.PREPARED: Part.PREPARING,
    Moment.PARKED: Part.PREPARING,
    Moment.UNPARKED: Part.PARKED,
}
"""The part that ends with such a mark."""
RESUMED_NS = 50_000_000
"""A wait that began or ended this close to an interruption was made longer by it."""
_AT_WORKERS = frozenset(
    {Part.PREFILL_QUEUE, Part.PREFILL, Part.FIRST_TOKEN, Part.RESERVATION, Part.TRANSFER, Part.DECODE_QUEUE}
)
_UNINTERRUPTED = frozenset({Part.DECODING, Part.LINKS, Part.GATEWAY_STALLED, Part.WORKER_SILENT})
"""Parts that hold no interruption, or from which they are taken before."""


def worker_name(epoch: bytes) -> str:
    """Return the name of a worker in records: the first digits of its epoch."""
    return epoch.hex()[:EPOCH_DIGITS]


def build_record(trail: KeptTrail) -> RequestRecord:
    """Build the record of a request that has ended."""
    facts = trail.facts
    tiling = _Tiling(trail)
    for mark in _followed(trail):
        tiling.take(mark)
    tiling.finish()
    attempts = list(tiling.attempts.values())
    return RequestRecord(
        id=facts.id,
        tenant=facts.tenant,
        model=facts.model,
        outcome=facts.outcome,
        code=facts.code,
        started_at=facts.started_at,
        duration_ns=tiling.cursor,
        spans=tiling.spans,
        attempts=attempts,
        prompt_tokens=facts.prompt_tokens,
        completion_tokens=facts.completion_tokens,
        cached_tokens=facts.cached_tokens,
        ttft_s=facts.first_token_s,
        tpot_s=facts.tpot_s,
        ttft_target_s=facts.ttft_target_s,
        tpot_target_s=facts.tpot_target_s,
        missed=facts.missed,
        slow_gaps=[tiling.slow_gap(gap) for gap in trail.gaps],
        num_slow_gaps=trail.num_slow,
        gap_target_s=trail.gap_target_s,
        migrations=tiling.migrations,
        missing=tiling.missing(),
        trace_id=facts.trace_id,
    )


def _followed(trail: KeptTrail) -> list[Mark]:
    """Return the marks that the spans follow, in order."""
    marks = trail.marks
    first = next((mark for mark in marks if mark.moment == Moment.FIRST), None)
    if first is None:
        latest = next((mark.run for mark in reversed(marks) if mark.run), b"")
        runs, begun_s = {latest}, float("inf")
    else:
        runs, begun_s = {first.run}, first.at_s
    later = runs | {trail.last_run}
    compiled = max((mark.at_s for mark in marks if mark.moment == Moment.TOKENISED), default=0.0)
    return [
        mark
        for mark in marks
        if (not mark.run or mark.run in (runs if mark.at_s <= begun_s else later))
        and not (mark.moment == Moment.COMPILED and mark.at_s <= compiled)
    ]


@dataclass(slots=True)
class _Tiling:
    """The spans so far. `cursor`: where the next one begins."""

    trail: KeptTrail
    cursor: int = 0
    spans: list[RecordSpan] = field(default_factory=list)
    attempts: dict[tuple[bytes, int], RecordedAttempt] = field(default_factory=dict)
    migrations: int = 0
    _waits_for: Part = Part.ROUTING
    """The part that goes on while it is at no worker."""
    _detail: str = ""
    _sent: Mark | None = None
    """The attempt at work."""
    _has_token: bool = False
    _is_decoding: bool = False
    _decoder: bytes = b""
    """The worker whose tokens come."""
    _unreported: list[str] = field(default_factory=list)
    _pauses: list[Pause] = field(init=False)

    def __post_init__(self) -> None:
        self._pauses = place_pauses(self.trail.stops, self.trail.began_s)

    def take(self, mark: Mark) -> None:
        """Take the next mark."""
        moment = Moment(mark.moment)
        if (part := _PREPARATION.get(moment)) is not None:
            self._until(mark.at_s, part, mark.text)
            return
        match moment:
            case Moment.HELD | Moment.UNROUTED:
                self._until(mark.at_s, self._waits_for, self._detail)
                self._waits_for = Part.HELD if moment is Moment.HELD else Part.PARKED
                self._detail = mark.text
            case Moment.ROUTED:
                self._until(mark.at_s, self._waits_for, self._detail)
                self._route(mark)
            case Moment.FIRST:
                self._first(mark)
            case Moment.FAILED:
                self._fail(mark)
            case Moment.ENDED:
                self._end(mark)
            case Moment.CLOSED:
                self._send_until(mark.at_s)

    def finish(self) -> None:
        """Join neighbours that are alike."""
        joined: list[RecordSpan] = []
        for span in self.spans:
            last = joined[-1] if joined else None
            if last is not None and (last.part, last.detail, last.worker) == (span.part, span.detail, span.worker):
                duration_ns = last.duration_ns + span.duration_ns
                joined[-1] = RecordSpan(last.part, last.start_ns, duration_ns, last.detail, last.worker)
            else:
                joined.append(span)
        self.spans = joined

    def missing(self) -> list[str]:
        """Name what the record has not."""
        left_out = self.trail.left_out
        return [*self._unreported, *([f"{left_out} marks that did not fit"] if left_out else [])]

    def slow_gap(self, gap: Gap) -> SlowGap:
        """Return the gap in nanoseconds since the beginning."""
        until = self._ns(gap.until_s)
        duration = round(gap.seconds * 1e9)
        return SlowGap(until - duration, duration, gap.choice)

    # Attempts ---------------------------------------------------------------------------------------------------------

    def _route(self, mark: Mark) -> None:
        prefill, decode = worker_name(mark.worker), worker_name(mark.decode)
        attempt = RecordedAttempt(mark.attempt, mark.text, prefill, decode, self._ns(mark.at_s))
        self.attempts[mark.run, mark.attempt] = attempt
        self.migrations += self._has_token
        self._sent, self._is_decoding = mark, False

    def _first(self, mark: Mark) -> None:
        sent = self._sent
        if sent is None or (sent.run, sent.attempt) != (mark.run, mark.attempt):
            return
        is_from_decode = mark.worker == sent.decode
        if self._is_decoding and not is_from_decode:  # overtaken: the decode worker's tokens arrived before
            self._amend(mark, chunks=None if mark.times is None else mark.times.chunks or None)
            return
        began = self._ns(sent.at_s)
        is_handed_over = self.cursor > began
        if mark.times is None:
            who = "decode" if is_from_decode else "prefill"
            self._unreported.append(f"times of the {who} worker {worker_name(mark.worker)}")
            self._until(mark.at_s, Part.TRANSFER if is_handed_over else Part.PREFILL, "not reported", mark.worker)
        elif is_handed_over or (is_from_decode and mark.times.landed_s is not None):
            self._tile_decode_leg(mark, mark.times, began, is_handed_over)
        else:
            self._tile_prefill_leg(mark, mark.times, began)
        if mark.times is not None and mark.times.chunks:
            self._amend(mark, chunks=mark.times.chunks)
        self._has_token = True
        self._is_decoding = is_from_decode or not sent.worker
        self._decoder = mark.worker

    def _tile_prefill_leg(self, mark: Mark, times: LegTimes, began: int) -> None:
        at = self._join(mark, times, began)
        self._links_to(at.place(0.0), at.paused_there)
        if times.began_s is not None:
            self._to(at.place(times.began_s), Part.PREFILL_QUEUE, "", mark.worker)
        if times.computed_s is not None:
            detail = f"{times.chunks} chunks" if times.chunks > 1 else ""
            self._to(at.place(times.computed_s), Part.PREFILL, detail, mark.worker)
        is_known = times.computed_s is not None
        self._to(at.place(times.sent_s), Part.FIRST_TOKEN if is_known else Part.PREFILL, "", mark.worker)
        self._links_to(at.arrived, at.paused_back)

    def _tile_decode_leg(self, mark: Mark, times: LegTimes, began: int, is_handed_over: bool) -> None:
        at = self._join(mark, times, began)
        if not is_handed_over:
            self._links_to(at.place(0.0), at.paused_there)
        if times.reserved_s is not None:
            self._to(at.place(times.reserved_s), Part.RESERVATION, "", mark.worker)
        if not is_handed_over and times.landed_s is not None:
            self._tile_overtaken_leg(began, at.place(times.landed_s))
        if times.landed_s is not None:
            self._to(at.place(times.landed_s), Part.TRANSFER, "", mark.worker)
        self._to(at.place(times.sent_s), Part.DECODE_QUEUE, "", mark.worker)
        self._links_to(at.arrived, at.paused_back)

    def _tile_overtaken_leg(self, began: int, landed: int) -> None:
        """Add what the prefill worker did until its KV had landed, if its first tokens arrived at all: those of the
        decode worker were faster."""
        sent = self._sent
        assert sent is not None
        leg = (Moment.FIRST, sent.run, sent.attempt, sent.worker)
        first = next((m for m in self.trail.marks if (m.moment, m.run, m.attempt, m.worker) == leg), None)
        if first is None or first.times is None:
            self._unreported.append(f"times of the prefill worker {worker_name(sent.worker)}")
            return
        at, times = self._join(first, first.times, began), first.times
        self._links_to(min(landed, at.place(0.0)), at.paused_there)
        for seconds, part in ((times.began_s, Part.PREFILL_QUEUE), (times.computed_s, Part.PREFILL)):
            if seconds is not None:
                self._to(min(landed, at.place(seconds)), part, "", sent.worker)

    def _join(self, mark: Mark, times: LegTimes, began: int) -> _Joined:
        """Join the clocks by the exchange of a leg. An interruption that its beginning or its end met made that way
        longer."""
        arrived = self._ns(mark.at_s)
        ways = max(0, arrived - began - round(times.sent_s * 1e9))
        there: list[Pause] = []
        back: list[Pause] = []
        for pause in self._pauses:
            took = min(ways, overlap(pause, began, arrived)) if pause.worker in (b"", mark.worker) else 0
            start, end = pause.whole
            is_back = arrived - end <= RESUMED_NS
            if took and (is_back or start - began <= RESUMED_NS):
                (back if is_back else there).append(Pause(0, took, pause.worker, pause.text))
                ways -= took
        return _Joined(began, arrived, times, there, back)

    def _links_to(self, end: int, pauses: list[Pause]) -> None:
        """Add the way between two processes, with the interruptions that it waited for."""
        for pause in pauses:
            took = min(pause.end - pause.start, end - self.cursor)
            self._add_pause(self.cursor + took, pause)
        self._to(end, Part.LINKS)

    def _fail(self, mark: Mark) -> None:
        key, detail = (mark.run, mark.attempt), f"{mark.text}, blamed on {worker_name(mark.worker)}"
        if key in self.attempts:
            ended_ns, blamed = self._ns(mark.at_s), worker_name(mark.worker)
            self._amend(mark, ended_ns=ended_ns, reason=mark.text, blamed=blamed)
        if self._is_decoding:
            self._decode_until(mark.at_s, Part.LOST_ATTEMPT, detail)
        else:
            self._until(mark.at_s, Part.LOST_ATTEMPT, detail, mark.worker)
        self._sent, self._is_decoding = None, False
        self._waits_for, self._detail = Part.BACKING_OFF, f"after {mark.text}"

    def _end(self, mark: Mark) -> None:
        if self._is_decoding:
            unread_s = self.trail.unread_from_s
            self._decode_until(mark.at_s if unread_s is None else min(mark.at_s, unread_s))
            self._send_until(mark.at_s)
        elif self._sent is None:
            self._until(mark.at_s, self._waits_for, self._detail)
        elif self._has_token:
            self._until(mark.at_s, Part.TRANSFER, "" if mark.text == "finished" else "ended before it was over")
        else:
            self._until(mark.at_s, Part.PREFILL, "ended before a token came", self._sent.worker or self._sent.decode)

    def _send_until(self, at_s: float) -> None:
        """Add the time of sending, with that in which the client did not read apart."""
        if (unread_s := self.trail.unread_from_s) is not None:
            self._until(min(at_s, unread_s), Part.SENDING)
            self._until(at_s, Part.SENDING, UNREAD)
        self._until(at_s, Part.SENDING)

    def _amend(self, mark: Mark, **values: object) -> None:
        key = (mark.run, mark.attempt)
        if (attempt := self.attempts.get(key)) is not None:
            self.attempts[key] = msgspec.structs.replace(attempt, **values)

    # Spans ------------------------------------------------------------------------------------------------------------

    def _ns(self, at_s: float) -> int:
        return round((at_s - self.trail.began_s) * 1e9)

    def _until(self, at_s: float, part: Part, detail: str = "", worker: bytes = b"") -> None:
        self._to(self._ns(at_s), part, detail, worker)

    def _to(self, end: int, part: Part, detail: str = "", worker: bytes = b"") -> None:
        """Add a span from the cursor to `end`; none where that is not later."""
        if end > self.cursor:
            name = worker_name(worker) if worker else ""
            for pause in self._interruptions(end, part, worker):
                self._add_span(pause.start, part, detail, name)
                self._add_pause(min(pause.end, end), pause)
            self._add_span(end, part, detail, name)

    def _add_span(self, end: int, part: Part, detail: str, worker: str) -> None:
        if end > self.cursor:
            self.spans.append(RecordSpan(part.value, self.cursor, end - self.cursor, detail, worker))
            self.cursor = end

    def _add_pause(self, end: int, pause: Pause) -> None:
        part = Part.WORKER_SILENT if pause.worker else Part.GATEWAY_STALLED
        self._add_span(end, part, pause.text, worker_name(pause.worker) if pause.worker else "")

    def _interruptions(self, end: int, part: Part, worker: bytes) -> list[Pause]:
        """Return the pauses that a span until `end` waited for. A worker goes on while this process stands still, and
        so do helpers; a wait at this process ends when it goes on."""
        if part in _UNINTERRUPTED:
            return []
        here = [pause for pause in self._pauses if pause.end > self.cursor and pause.start < end]
        if part in (Part.SLOW_GAPS, Part.PREEMPTED):
            return [pause for pause in here if pause.worker in (b"", self._decoder)]
        if worker and part in _AT_WORKERS:
            return [pause for pause in here if pause.worker == worker]
        return [pause for pause in here if not pause.worker and end - pause.end <= RESUMED_NS]

    def _decode_until(self, at_s: float, last: Part | None = None, detail: str = "") -> None:
        """Add the spans of decoding, with slow gaps apart. `last`: what a gap is that was not over by then."""
        end = self._ns(at_s)
        for gap, part in self._excesses():
            start, until = gap.start_ns, gap.start_ns + gap.duration_ns
            if until <= self.cursor or start >= end:
                continue
            self._to(start, Part.DECODING)
            if until > end and last is not None:
                self._to(end, last, detail)
            else:
                self._to(min(until, end), part)
        self._to(end, Part.DECODING)

    def _excesses(self) -> list[tuple[SlowGap, Part]]:
        """Return what the longest gaps took beyond the target, in order of time. The longest are those of a
        preemption, if there was one."""
        target = round(self.trail.gap_target_s * 1e9)
        preemptions = sum(times.preemptions for times in self.trail.preempted)
        excesses = []
        for place, gap in enumerate(map(self.slow_gap, self.trail.gaps)):
            part = Part.PREEMPTED if place < preemptions else Part.SLOW_GAPS
            excesses.append((SlowGap(gap.start_ns + target, gap.duration_ns - target, gap.choice), part))
        return sorted(excesses, key=lambda excess: excess[0].start_ns)


@dataclass(frozen=True, slots=True)
class _Joined:
    """A worker's clock, joined with the gateway's by an exchange from `began` to `arrived`."""

    began: int
    arrived: int
    times: LegTimes
    paused_there: list[Pause]
    """Interruptions on the way to the worker."""
    paused_back: list[Pause]

    def place(self, seconds: float) -> int:
        """Return the place of a time that the worker reported. What the ways took is divided equally between them, but
        for interruptions."""
        there, back = (sum(p.end - p.start for p in pauses) for pauses in (self.paused_there, self.paused_back))
        slack = self.arrived - self.began - round(self.times.sent_s * 1e9) - there - back
        return min(self.arrived, self.began + there + max(0, slack) // 2 + round(seconds * 1e9))
