"""Histograms merged over processes, and their percentiles."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from baton_local.latency import merged

NAME = "baton_gateway_ttft_seconds"


def page(*seconds: float) -> str:
    registry = CollectorRegistry()
    histogram = Histogram(NAME, "Time", registry=registry, buckets=(0.1, 0.2, 0.4))
    for value in seconds:
        histogram.observe(value)
    return generate_latest(registry).decode()


def test_processes_add_up() -> None:
    assert merged([page(0.05), page(0.3, 0.3)], NAME).buckets == ((0.1, 1), (0.2, 1), (0.4, 3), (float("inf"), 3))


def test_a_percentile_is_interpolated_in_its_bucket() -> None:
    histogram = merged([page(*[0.05] * 50, *[0.15] * 50)], NAME)
    assert histogram.percentile(50) == pytest.approx(0.1)
    assert histogram.percentile(75) == pytest.approx(0.15)
    assert histogram.percentile(100) == pytest.approx(0.2)


def test_beyond_the_last_bound_only_a_lower_bound_is_known() -> None:
    assert merged([page(9.0)], NAME).percentile(95) == pytest.approx(0.4)


def test_nothing_observed_is_unknown_and_not_zero() -> None:
    assert merged([], NAME).percentile(95) is None
    assert merged([page()], NAME).percentile(95) is None
    assert merged([page()], NAME).count == 0
