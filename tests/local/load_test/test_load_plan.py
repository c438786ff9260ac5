"""ArrivalKind and lengths: rates, spreads, what is refused, and that a seed says everything."""

from __future__ import annotations

import argparse

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.sizing.inputs.workload import Workload
from baton_local.load_test.length_distribution import MAX_TOKENS, LengthDistribution, length_distribution
from baton_local.load_test.load_plan import BURSTY_CV, ArrivalKind, Lengths, arrival_times, drawn_load, traced_load


@pytest.mark.parametrize("kind", list(ArrivalKind))
def test_arrivals_come_at_the_rate_and_within_the_duration(kind: ArrivalKind) -> None:
    times = arrival_times(kind, 20.0, 2_000.0, np.random.default_rng(3))
    assert np.all(np.diff(times) >= 0)
    assert times[0] >= 0.0
    assert times[-1] < 2_000.0
    assert len(times) == pytest.approx(40_000, rel=0.05)


@pytest.mark.parametrize(("kind", "spread"), [(ArrivalKind.POISSON, 1.0), (ArrivalKind.BURSTY, BURSTY_CV)])
def test_gaps_are_spread_as_the_kind_says(kind: ArrivalKind, spread: float) -> None:
    gaps = np.diff(arrival_times(kind, 50.0, 4_000.0, np.random.default_rng(4)))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(spread, rel=0.05)


def test_even_gaps_are_all_alike() -> None:
    assert arrival_times(ArrivalKind.EVEN, 4.0, 1.0, np.random.default_rng(1)).tolist() == [0.0, 0.25, 0.5, 0.75]


def test_a_log_normal_has_the_median_and_the_percentile_that_were_asked_for() -> None:
    drawn = length_distribution("2000~7000").draw(200_000, np.random.default_rng(5))
    assert np.median(drawn) == pytest.approx(2_000, rel=0.02)
    assert np.percentile(drawn, 99) == pytest.approx(7_000, rel=0.03)


@given(st.integers(1, MAX_TOKENS), st.integers(1, MAX_TOKENS), st.sampled_from("-~"))
def test_a_distribution_reads_what_it_writes(one: int, other: int, sign: str) -> None:
    low, high = sorted((one, other))
    lengths = length_distribution(f"{low}{sign}{high}")
    assert lengths == LengthDistribution(low, high, is_lognormal=sign == "~")
    assert length_distribution(str(lengths)) == lengths
    drawn = lengths.draw(20, np.random.default_rng(1))
    assert drawn.min() >= 1
    assert sign == "~" or low <= drawn.min() <= drawn.max() <= high


@pytest.mark.parametrize("text", ["", "0", "-5", "5-", "5-4", "9~3", "a", "1-2-3", "1.5", "²", "99999999", "1~x"])
def test_what_is_no_length_is_refused_by_what_is_allowed(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="not allowed"):
        length_distribution(text)


def test_a_seed_says_the_whole_load_and_shared_tokens_leave_one_of_their_own() -> None:
    lengths = Lengths(length_distribution("1-40"), length_distribution("7"), shared=30)

    def load() -> Workload:
        dice = np.random.default_rng(9)
        return drawn_load(arrival_times(ArrivalKind.POISSON, 5.0, 60.0, dice), lengths, dice)

    one, other = load(), load()
    assert one.arrival_s.tolist() == other.arrival_s.tolist()
    assert one.prompt_tokens.tolist() == other.prompt_tokens.tolist()
    assert np.all(one.cached_tokens < one.prompt_tokens)
    assert one.cached_tokens.max() == 30


def test_lengths_of_a_trace_stay_together() -> None:
    pairs = [(10, 1, 0), (200, 2, 50), (3_000, 3, 1)]
    prompt, output, cached = (np.array(column) for column in zip(*pairs, strict=True))
    trace = Workload(np.arange(3.0), prompt, output, cached, "azure")
    load = traced_load(np.arange(50.0), trace, np.random.default_rng(2))
    drawn = set(zip(load.prompt_tokens, load.output_tokens, load.cached_tokens, strict=True))
    assert drawn == set(pairs)
    assert load.arrival_s.tolist() == [float(at) for at in range(50)]
