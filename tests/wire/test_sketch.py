"""Sketches of many numbers: right within a percent, bounded, and merged without loss."""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.messages.measures import MAX_BINS, SketchData
from baton_wire.sketch import RELATIVE_ERROR, Sketch, merged

VALUES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=60)


def sketch(values: Iterable[float]) -> Sketch:
    whole = Sketch()
    for value in values:
        whole.add(value)
    return whole


@given(VALUES, st.sampled_from([1, 50, 95, 99, 100]))
def test_a_quantile_is_within_one_percent_of_a_value_that_was_seen(values: list[float], percent: int) -> None:
    rank = max(1, -(-len(values) * percent // 100))
    exact = sorted(values)[rank - 1]
    assert sketch(values).quantile(percent / 100) == pytest.approx(exact, rel=1.01 * RELATIVE_ERROR)


@given(VALUES, VALUES)
def test_merging_is_the_sketch_of_everything_however_it_came(first: list[float], second: list[float]) -> None:
    whole = sketch(first + second)
    for parts in ([sketch(first), sketch(second)], [sketch(second).data(), sketch(first).data()]):
        assert merged(parts).bins == whole.bins
        assert merged(parts).total == pytest.approx(whole.total)
        assert merged(parts).count == len(first) + len(second)


def test_nothing_seen_is_unknown_and_not_zero() -> None:
    assert Sketch().quantile(0.5) is None
    assert Sketch().share_within(1.0) is None


def test_the_share_within_a_limit_counts_what_is_at_it() -> None:
    assert sketch([0.1, 0.2, 0.4, 0.8]).share_within(0.2) == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_what_is_no_size_is_refused_and_never_counted_as_zero(value: float) -> None:
    whole = Sketch()
    with pytest.raises(ValueError, match="finite"):
        whole.add(value)
    assert whole == Sketch()


def test_the_number_of_bins_is_bounded() -> None:
    random_ = random.Random(1)
    whole = sketch([10 ** random_.uniform(-12, 12) for _ in range(50_000)] + [0.0])
    assert 1_400 < len(whole.data().bins) <= MAX_BINS


def test_what_was_taken_is_not_told_again() -> None:
    whole = sketch([0.1, 0.2])
    assert whole.take() == sketch([0.1, 0.2]).data()
    assert whole.data() == SketchData()


def test_a_sketch_travels_and_one_of_other_bins_is_refused() -> None:
    data = sketch([0.1, 0.2]).data()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(data), type=SketchData) == data
    with pytest.raises(ValueError, match="ratio"):
        merged([msgspec.structs.replace(data, ratio=1.5)])
