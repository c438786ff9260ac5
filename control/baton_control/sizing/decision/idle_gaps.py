"""After how long a quiet time pools sleep, by money: workers that wait for requests against requests that wait for
workers. Pure.

It is ski rental. Staying awake costs by the hour. Sleeping costs once, by the requests that a start makes late. The
quiet time is the one that would have cost least over the gaps that were seen. Until there are enough of them, it is the
one at which both costs are even: that never costs more than twice what knowing the gap would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf

from baton_control.sizing.decision.forecast import MIN_TESTS

KEPT = 64
"""So many gaps choose, and over so many intervals with requests their rate is a mean."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nothing came and nothing was at work, and that ended with a request."""

    seconds: float
    late: float
    """Requests that came so soon behind it that a start would have made them late."""


@dataclass(frozen=True, slots=True)
class GapEnd:
    """The last gap has ended; what comes until `until_s` would be late if the pools had slept."""

    gap_s: float
    until_s: float
    late: float = 0.0


@dataclass(frozen=True, slots=True)
class IdleGaps:
    """What is remembered of gaps."""

    kept: tuple[Gap, ...] = ()
    """The newest last."""
    end: GapEnd | None = None
    """Behind which requests are still counted."""
    busy_per_s: float = 0.0
    """Requests, in the mean of intervals with any: a gap may be longer than any other memory of them."""
    busy: int = 0
    """So many intervals, `KEPT` at most."""


NO_GAPS = IdleGaps()


@dataclass(frozen=True, slots=True)
class Prices:
    awake_per_hour: float
    """Of the smallest pools that serve: a quiet pool has shrunk to them."""
    miss: float
    """What a request that is late costs whoever serves it."""


@dataclass(frozen=True, slots=True)
class QuietTime:
    """When pools sleep, and the sums behind it."""

    seconds: float
    """Infinite: staying awake costs nothing."""
    why: str


def ended(gaps: IdleGaps, gap_s: float, since_s: float, start_s: float, least_s: float) -> IdleGaps:
    """Requests came after a gap. Those within `start_s` of `since_s` would have been late after sleeping. Gaps shorter
    than `least_s`, before which pools never sleep, cost the same whatever is chosen, and are not kept."""
    if gap_s < least_s:
        return gaps
    return replace(_closed(gaps), end=GapEnd(gap_s, since_s + start_s))


def counted(gaps: IdleGaps, requests: int, seconds: float, now: float) -> IdleGaps:
    """So many requests came in the last `seconds`."""
    busy = min(KEPT, gaps.busy + 1)
    busy_per_s = gaps.busy_per_s + (requests / seconds - gaps.busy_per_s) / busy
    gaps, end = replace(gaps, busy_per_s=busy_per_s, busy=busy), gaps.end
    if end is None:
        return gaps
    share = min(1.0, max(0.0, end.until_s - (now - seconds)) / seconds)
    gaps = replace(gaps, end=replace(end, late=end.late + share * requests))
    return _closed(gaps) if now >= end.until_s else gaps


@lru_cache(maxsize=256)
def quiet_time(gaps: IdleGaps, prices: Prices, start_s: float, least_s: float) -> QuietTime:
    """The quiet time of at least `least_s` after which sleeping costs least; a wake makes late who comes within
    `start_s`."""
    kept = _closed(gaps).kept
    wake = sum(gap.late for gap in kept) / len(kept) if kept else max(1.0, gaps.busy_per_s * start_s)
    even_s = inf if prices.awake_per_hour <= 0 else wake * prices.miss / prices.awake_per_hour * 3600.0
    if len(kept) < MIN_TESTS:
        seconds = max(least_s, even_s)
        return QuietTime(
            seconds,
            f"{prices.awake_per_hour:.3g} an hour awake, {wake * prices.miss:.3g} for the {wake:.3g} that a wake makes "
            f"late are even after {seconds:.0f} s, by {len(kept)} gaps",
        )
    kept = tuple(sorted(kept, key=lambda gap: gap.seconds))
    longest = max(even_s, *(gap.seconds for gap in kept))
    choices = (longest, *(gap.seconds for gap in reversed(kept)), least_s)
    seconds = min(choices, key=lambda each: sum(_cost(kept, prices, each)))  # of equals the longest: fewer wakes
    awake, late = _cost(kept, prices, seconds)
    never, _ = _cost(kept, prices, inf)
    return QuietTime(
        seconds,
        f"over {len(kept)} gaps, {seconds:.0f} s awake would have cost {awake:.3g} and {late:.3g} for late requests, "
        f"never sleeping {never:.3g}",
    )


def _closed(gaps: IdleGaps) -> IdleGaps:
    """The gap whose requests were counted is kept."""
    end = gaps.end
    kept = gaps.kept if end is None else (*gaps.kept, Gap(end.gap_s, end.late))[-KEPT:]
    return replace(gaps, kept=kept, end=None)


def _cost(gaps: Sequence[Gap], prices: Prices, quiet_s: float) -> tuple[float, float]:
    """Of staying awake and of late requests, had pools slept after `quiet_s` in each of the gaps."""
    awake_s = sum(min(gap.seconds, quiet_s) for gap in gaps)
    late = sum(gap.late for gap in gaps if gap.seconds > quiet_s)
    return awake_s / 3600.0 * prices.awake_per_hour, late * prices.miss
