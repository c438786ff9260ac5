"""Sketches of durations."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_gateway.reporting.latency import LatencySketch, SketchData, merged

DURATIONS = st.lists(st.floats(1e-6, 3_000), min_size=1, max_size=50)


def sketch(durations: list[float]) -> LatencySketch:
    made = LatencySketch()
    for duration in durations:
        made.add(duration)
    return made


@given(DURATIONS, st.sampled_from([1, 50, 95, 99, 100]))
def test_a_percentile_is_within_one_percent_of_a_value_that_was_seen(durations: list[float], percent: float) -> None:
    ordered = sorted(durations)
    rank = max(1, -(-len(ordered) * percent // 100))
    assert sketch(durations).percentile(percent) == pytest.approx(ordered[int(rank) - 1], rel=0.0101)


@given(DURATIONS, DURATIONS)
def test_merging_is_the_sketch_of_everything(first: list[float], second: list[float]) -> None:
    parts = [sketch(first).data(), sketch(second).data()]
    assert merged(parts).data().buckets == sketch(first + second).data().buckets
    assert merged(parts).count == len(first) + len(second)


def test_nothing_seen_is_unknown_and_not_zero() -> None:
    assert LatencySketch().percentile(50) is None


def test_the_number_of_buckets_is_bounded() -> None:
    random_ = random.Random(1)
    made = sketch([10 ** random_.uniform(-12, 12) for _ in range(20_000)] + [0.0])
    assert len(made.data().buckets) < 1_200


def test_a_sketch_travels_as_json() -> None:
    data = sketch([0.1, 0.2]).data()
    assert msgspec.json.decode(msgspec.json.encode(data), type=SketchData) == data
    with pytest.raises(ValueError, match="ratio"):
        merged([msgspec.structs.replace(data, ratio=1.5)])
