"""What a load amounted to: percentiles, and the goodput at each pair of targets. Pure.

TTFT counts from when a request was due. TPOT is an answer's mean time between tokens, ITL each gap between two pieces
of it, E2E the time from due to its end. Refused and broken requests count as missed at every target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from baton_local.client import Answer, AnswerEnd

ROUNDING = 1e-6
"""Of a share of requests: 99.9 / 100 is a little more than 999 of 1,000."""


@dataclass(frozen=True, slots=True)
class ClientTargets:
    """Seconds; None: not asked for."""

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
class LatencySpread:
    """Seconds, by the nearest rank."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Attainment:
    """How many of the offered requests met one pair of targets."""

    targets: ClientTargets
    share: float
    """Of the requests that were offered."""
    goodput_per_s: float
    """Requests within the targets per second of arrivals."""
    is_kept: bool
    """The share is no less than was asked for."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One load at one rate. None: nothing ended of which it could be told."""

    rate: float
    """Requests per second, as asked for; as sent, where a trace's own times were asked for."""
    duration_s: float
    offered: int
    whole: int
    refused: int
    broken: int
    failures: dict[str, int]
    """How often each came: a status or an error's name."""
    failed_because: str | None
    """What the first of them said."""
    prompt_tokens: float | None
    """Mean, as the server counted."""
    output_tokens: float | None
    output_tokens_per_s: float | None
    """From the first request's time to the last answer's end."""
    per_gpu_tokens_per_s: float | None
    """None also where the number of GPUs was not told."""
    ttft_s: LatencySpread | None
    tpot_s: LatencySpread | None
    itl_s: LatencySpread | None
    e2e_s: LatencySpread | None
    late_p99_s: float | None
    """How much later than due the client sent; what it misses is in all latencies."""
    attainment: tuple[Attainment, ...]
    uncounted: int = 0
    """Whole answers of which the server did not count the tokens: pieces stand for them."""
    unended: int | None = None
    """Of a load that was stopped: requests under way then, which are in no other number. None: it was not stopped."""

    def share_within(self, targets: ClientTargets) -> float | None:
        """Of the requests; None: it was not asked of this load."""
        return next((each.share for each in self.attainment if each.targets == targets), None)


def report(
    answers: Sequence[Answer],
    duration_s: float,
    targets: Sequence[ClientTargets],
    share: float,
    gpus: int | None = None,
    rate: float | None = None,
    unended: int | None = None,
) -> LoadReport:
    """Of requests that arrived over `duration_s` at `rate`.

    `share`, in (0, 1], of them have to meet the targets, so that these are kept. Of a load that was stopped nobody
    knows: the slow ones are missing.
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
        attainment=tuple(attainment(answers, duration_s, each, share) for each in targets if unended is None),
        uncounted=sum(not answer.is_counted for answer in whole),
        unended=unended,
    )


def attainment(answers: Sequence[Answer], duration_s: float, targets: ClientTargets, share: float) -> Attainment:
    """Of all that were offered."""
    met = sum(targets.met_by(answer) for answer in answers)
    found = met / len(answers) if answers else 0.0
    is_kept = met >= share * len(answers) - ROUNDING
    return Attainment(targets, found, met / duration_s, bool(answers) and is_kept)


def latency(seconds: Sequence[float]) -> LatencySpread | None:
    """None for no values."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def rank(percent: float) -> float:
        return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

    return LatencySpread(sum(ordered) / len(ordered), rank(50), rank(95), rank(99))


def highest_kept(reports: Sequence[LoadReport], targets: ClientTargets) -> LoadReport | None:
    """The report with the highest rate at which these targets were kept, if they were at all at lower rates too.

    A rate that is kept above one that is not is chance: it does not count.
    """
    best = None
    asked = (one for one in reports if one.share_within(targets) is not None)
    for each in sorted(asked, key=lambda one: one.rate):
        if not any(found.is_kept for found in each.attainment if found.targets == targets):
            return best
        best = each
    return best
