"""What will still wait when a worker that is started now can help: a fluid queue over the workers to come. Pure."""

from __future__ import annotations

Orders = tuple[tuple[float, int], ...]
"""(when they should be routable, how many), in the order in which they were asked for."""
Steps = tuple[tuple[float, int], ...]
"""(seconds from now, workers from then on), ascending, the first at 0."""


def capacity_steps(routable: int, workers: int, orders: Orders, now: float, horizon_s: float) -> Steps:
    """How many workers serve when. Those on their way that no order is known of come after half the horizon."""
    pending = max(0, workers - routable)
    coming: list[tuple[float, int]] = []
    for ready_s, count in reversed(orders):  # the latest are those that are still missing
        taken = min(count, pending)
        if taken:
            coming.append((min(horizon_s, max(0.0, ready_s - now)), taken))
            pending -= taken
    if pending:
        coming.append((horizon_s / 2, pending))
    steps, total = [(0.0, routable)], routable
    for at, count in sorted(coming):
        total += count
        steps.append((at, total))
    return tuple(steps)


def waiting_at(waiting: float, rate_per_s: float, one_per_s: float, steps: Steps, horizon_s: float) -> float:
    """Requests that wait after `horizon_s`, when `rate_per_s` arrive and each worker serves `one_per_s`."""
    ends = [at for at, _ in steps[1:]] + [horizon_s]
    for (start, workers), end in zip(steps, ends, strict=True):
        waiting = max(0.0, waiting + (rate_per_s - workers * one_per_s) * max(0.0, end - start))
    return waiting
