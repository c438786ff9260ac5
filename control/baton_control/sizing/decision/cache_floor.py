"""The fewest prefill workers whose KV holds the contexts that sessions come back to. Pure.

With fewer workers, contexts are evicted before they are continued, and prompts are computed anew: a pool that is just
large enough for what it computes now would break down. Contexts that are continued late are not worth their KV where
computing them again takes fewer workers and keeps the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from baton_control.sizing.inputs.context_use import ContextUse

CACHE_FILL = 0.9
"""The share of a prefill worker's KV that contexts may fill; running prompts need the rest."""
COLD_SHARE = 0.5
"""A share of the TTFT target: a prompt that takes longer without its cached tokens leaves no time to wait."""
CACHE_SPARE = 1.08
"""How many times the contexts must fit before a worker is stopped: each stop and each start empties a cache."""
LOST_SHARE = 0.05
"""A share of the prompt tokens: when caches lose more, the reason of the pool's size says why."""
LEAST_REUSED = 0.1
"""Where a smaller share of the prompt tokens is used again, caches do not decide the size of a pool."""


@dataclass(frozen=True, slots=True)
class CacheFloor:
    """A least size of the prefill pool, and the contexts that it holds."""

    workers: int
    kept: int
    """Workers below which the pool does not shrink."""
    live_tokens: int
    window_s: float
    """Contexts that are continued within this time are held."""


def find_cache_floor(
    use: ContextUse, kv_capacity_tokens: int, needed: int, late_share: float, *, is_cold_late: bool
) -> CacheFloor | None:
    """The floor for contexts of this use; None: too few tokens are used again.

    `needed`: workers that compute what is missing now. `late_share`: of the requests that may miss the target.
    `is_cold_late`: a prompt without its cached tokens takes more than `COLD_SHARE` of it.
    """
    if not use.prompt_tokens or use.reused[-1] < LEAST_REUSED * use.prompt_tokens:
        return None
    floors = []
    for window_s, reused, live in zip(use.windows_s, use.reused, use.live, strict=True):
        filled = live / (CACHE_FILL * kv_capacity_tokens)
        workers, kept = max(1, ceil(filled)), max(1, ceil(CACHE_SPARE * filled))
        recomputed = (use.prompt_tokens - use.first_cached - reused) / max(1, use.missing_tokens)
        lost_share = 1.0 - reused / use.reused[-1]
        if not is_cold_late or lost_share <= late_share:
            floors.append((max(workers, ceil(needed * recomputed)), workers, CacheFloor(workers, kept, live, window_s)))
    return min(floors, key=lambda floor: floor[:2])[2] if floors else None


def describe_hits(use: ContextUse | None) -> str:
    """The hit rate of the prefill pool and why it is not higher; empty where little is lost."""
    if use is None or use.hit_share is None or use.evicted_share + use.elsewhere_share < LOST_SHARE:
        return ""
    losses = (
        (use.evicted_share, "were evicted before their sessions came back"),
        (use.elsewhere_share, "were cached at other workers alone"),
    )
    lost = ", ".join(f"{share:.0%} {why}" for share, why in losses if share >= 0.01)
    return f"{use.hit_share:.0%} of the prompt tokens were cached, {lost}"
