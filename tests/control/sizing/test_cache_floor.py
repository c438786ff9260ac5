"""The prefill workers whose KV holds what sessions come back to."""

from __future__ import annotations

import pytest

from baton_control.sizing.decision.cache_floor import CACHE_FILL, CacheFloor, describe_hits, find_cache_floor
from baton_control.sizing.inputs.context_use import ContextUse, merge_context_counts
from baton_wire.messages.measures import NUM_WINDOWS, ContextCounts

KV = 1_000_000


def use(
    reused: tuple[float, ...],
    live: tuple[float, ...],
    missing: float = 10.0,
    first: float = 0.0,
    cached: float = 90.0,
) -> ContextUse:
    """Of 100 million prompt tokens; all numbers in millions."""
    as_tokens = [tuple(int(value * 1e6) for value in values) for values in (reused, live)]
    windows = (15.0, 60.0, 240.0)[: len(reused)]
    cacheable = int(cached * 1e6)
    return ContextUse(100_000_000, int(first * 1e6), cacheable, int(missing * 1e6), as_tokens[0], as_tokens[1], windows)


def floor(contexts: ContextUse, needed: int, *, is_cold_late: bool = True) -> CacheFloor | None:
    return find_cache_floor(contexts, KV, needed, 0.05, is_cold_late=is_cold_late)


def test_where_a_prompt_that_is_computed_anew_is_late_nearly_all_contexts_are_held() -> None:
    contexts = use(reused=(60.0, 87.0, 90.0), live=(3.0, 9.0, 20.0))
    assert floor(contexts, needed=4) == CacheFloor(10, 11, 9_000_000, 60.0)
    assert CACHE_FILL >= 9.0 / 10


def test_where_it_is_not_late_contexts_are_held_as_far_as_that_takes_fewer_workers() -> None:
    contexts = use(reused=(60.0, 87.0, 90.0), live=(3.0, 9.0, 40.0))
    assert floor(contexts, needed=2, is_cold_late=False) == CacheFloor(4, 4, 3_000_000, 15.0), "4 + 8 beat 10 + 3"
    assert floor(contexts, needed=8, is_cold_late=False) == CacheFloor(10, 11, 9_000_000, 60.0), "computing needs 32"


def test_contexts_that_are_never_continued_need_no_workers() -> None:
    assert floor(use(reused=(0.0, 0.0, 5.0), live=(50.0, 90.0, 95.0)), needed=4) is None
    assert floor(ContextUse(0, 0, 0, 0, (0, 0, 0), (0, 0, 0), (15.0, 60.0, 240.0)), needed=4) is None


def test_sessions_that_come_back_after_long_do_not_fill_the_cluster() -> None:
    contexts = use(reused=(70.0, 88.0, 90.0), live=(1.0, 2.0, 900.0))
    held = floor(contexts, needed=4)
    assert held is not None
    assert held.workers == 3


def test_counts_of_gateways_add_up_over_time_and_their_contexts_now() -> None:
    def counts(prompts: int, live: int) -> ContextCounts:
        return ContextCounts(prompts, 1, 4, 2, (3,) * NUM_WINDOWS, (live,) * NUM_WINDOWS)

    merged = merge_context_counts([counts(10, 5), counts(20, 6), counts(30, 7)], [counts(20, 6), counts(30, 7)])
    assert (merged.prompt_tokens, merged.first_cached, merged.missing_tokens) == (60, 3, 6)
    assert merged.reused[0] == 9
    assert merged.live[0] == 13


@pytest.mark.parametrize("needed", [1, 5, 50])
def test_a_floor_is_never_more_than_its_contexts_fill(needed: int) -> None:
    held = floor(use(reused=(60.0, 87.0, 90.0), live=(0.0, 0.0, 0.0)), needed)
    assert held is not None
    assert held.workers == 1


@pytest.mark.parametrize(
    ("contexts", "text"),
    [
        (None, ""),
        (use(reused=(90.0,), live=(1.0,)), ""),
        (use(reused=(90.0,), live=(1.0,), missing=40.0, cached=60.0),
         "60% of the prompt tokens were cached, 30% were evicted before their sessions came back"),
        (use(reused=(90.0,), live=(1.0,), missing=30.0, cached=90.0),
         "70% of the prompt tokens were cached, 20% were cached at other workers alone"),
        (use(reused=(80.0,), live=(1.0,), missing=40.0, cached=70.0, first=10.0),
         "60% of the prompt tokens were cached, 20% were evicted before their sessions came back, "
         "10% were cached at other workers alone"),
    ],
)  # fmt: skip
def test_a_hit_rate_is_given_with_its_reason_where_it_is_low(contexts: ContextUse | None, text: str) -> None:
    assert describe_hits(contexts) == text
