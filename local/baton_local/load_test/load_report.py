"""The report of a load: latency percentiles, and the goodput at each pair of targets. Pure.

TTFT counts from when a request was due. TPOT is an answer's mean time between tokens, ITL each gap between two pieces
of it, E2E the time from due to its end. Refused and broken requests miss every target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from baton_local.client import Answer, AnswerEnd
from baton_local.load_test.latency_spread import LatencySpread, latency
from baton_local.load_test.session_report import SessionFigures

ROUNDING = 1e-6
"""Tolerance for a share of requests: 99.9 / 100 is a little more than 999 of 1,000."""


@dataclass(frozen=True, slots=True)
class ClientTargets:
    """Latency targets in seconds; None: no target."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __str__(self) -> str:
        pairs = (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))
        return ", ".join(f"{name} {1e3 * value:g} ms" for name, value in pairs if value is not None) or "any latency"

    def met_by(self, answer: Answer) -> bool:
        return (
            answer.end is AnswerEnd.WHOLE
            and (self.ttft_s is None or answer.ttft_s <= self.ttft_s)
            and (self.tpot_s is None or answer.tpot_s <= self.tpot_s)
        )


@dataclass(frozen=True, slots=True)
class Attainment:
    """Attainment of one pair of targets."""

    targets: ClientTargets
    share: float
    """Share of the offered requests that met the targets."""
    goodput_per_s: float
    """Requests within the targets per second of arrivals."""
    is_kept: bool
    """True: the share is as large as required."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The report of one load at one rate. None: no request ended that it could be measured on."""

    rate: float
    """Requests per second: the requested rate, or that of a trace's own arrival times."""
    duration_s: float
    offered: int
    whole: int
    refused: int
    broken: int
    failures: dict[str, int]
    """Number of each kind of failure: an HTTP status or the name of an error."""
    failed_because: str | None
    """Message of the first failure."""
    prompt_tokens: float | None
    """Mean prompt tokens, as the server counted."""
    output_tokens: float | None
    output_tokens_per_s: float | None
    """Throughput from the first request's due time to the end of the last answer."""
    per_gpu_tokens_per_s: float | None
    """Throughput per GPU; None also without --gpus."""
    ttft_s: LatencySpread | None
    tpot_s: LatencySpread | None
    itl_s: LatencySpread | None
    e2e_s: LatencySpread | None
    late_p99_s: float | None
    """Delay of the client's own sending, which is part of all latencies."""
    attainment: tuple[Attainment, ...]
    uncounted: int = 0
    """Whole answers without a token count of the server; their pieces are counted instead."""
    unended: int | None = None
    """Requests in flight when the load was stopped, which no other number includes. None: it was not stopped."""
    sessions: SessionFigures | None = None
    """None: it was not a load of sessions."""

    def share_within(self, targets: ClientTargets) -> float | None:
        """Share of the requests within the targets; None: the report does not have these targets."""
        return next((result.share for result in self.attainment if result.targets == targets), None)


def report(
    answers: Sequence[Answer],
    duration_s: float,
    targets: Sequence[ClientTargets],
    share: float,
    gpus: int | None = None,
    rate: float | None = None,
    unended: int | None = None,
) -> LoadReport:
    """The report of requests that arrived over `duration_s` at `rate`.

    `share`, in (0, 1], of them has to meet the targets. A load that was stopped has no attainment, because its slow
    requests are missing.
    """
    whole = [answer for answer in answers if answer.end is AnswerEnd.WHOLE]
    failed = [answer for answer in answers if answer.end is not AnswerEnd.WHOLE]
    tokens = sum(answer.tokens for answer in whole)
    wall_s = max((a.ended_s for a in answers), default=0.0) - min((a.due_s for a in answers), default=0.0)
    speed = tokens / wall_s if whole and wall_s > 0 else None
    prompts = [answer.prompt_tokens for answer in whole if answer.prompt_tokens is not None]
    late = latency([answer.sent_s - answer.due_s for answer in answers])
    return LoadReport(
        rate=len(answers) / duration_s if rate is None else rate,
        duration_s=duration_s,
        offered=len(answers),
        whole=len(whole),
        refused=sum(answer.end is AnswerEnd.REFUSED for answer in failed),
        broken=sum(answer.end is AnswerEnd.BROKEN for answer in failed),
        failures=dict(Counter(answer.failure for answer in failed)),
        failed_because=" ".join(failed[0].detail.split())[:200] if failed else None,
        prompt_tokens=sum(prompts) / len(prompts) if prompts else None,
        output_tokens=tokens / len(whole) if whole else None,
        output_tokens_per_s=speed,
        per_gpu_tokens_per_s=speed / gpus if speed is not None and gpus else None,
        ttft_s=latency([answer.ttft_s for answer in whole if answer.times_s]),
        tpot_s=latency([answer.tpot_s for answer in whole if answer.tokens > 1]),
        itl_s=latency([gap for answer in whole for gap in answer.gaps_s]),
        e2e_s=latency([answer.ended_s - answer.due_s for answer in whole]),
        late_p99_s=None if late is None else late.p99,
        attainment=tuple(attainment(answers, duration_s, pair, share) for pair in targets if unended is None),
        uncounted=sum(not answer.is_counted for answer in whole),
        unended=unended,
    )


def attainment(answers: Sequence[Answer], duration_s: float, targets: ClientTargets, share: float) -> Attainment:
    """The attainment of a pair of targets, over all offered requests."""
    met = sum(targets.met_by(answer) for answer in answers)
    met_share = met / len(answers) if answers else 0.0
    is_kept = met >= share * len(answers) - ROUNDING
    return Attainment(targets, met_share, met / duration_s, bool(answers) and is_kept)


def highest_kept(reports: Sequence[LoadReport], targets: ClientTargets) -> LoadReport | None:
    """The report with the highest rate at which these targets were met, as at all lower rates.

    A rate that meets them above one that does not is chance, and does not count.
    """
    best = None
    measured = (report for report in reports if report.share_within(targets) is not None)
    for report in sorted(measured, key=lambda report: report.rate):
        if not any(result.is_kept for result in report.attainment if result.targets == targets):
            return best
        best = report
    return best
