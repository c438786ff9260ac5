"""The rate of a link in the last minute counts the time in which bytes were under way."""

from __future__ import annotations

from baton_kv_transfer.prefill.recent_rate import LEAST_BYTES, RecentRate

MANY = LEAST_BYTES


def test_idle_time_does_not_lower_the_rate() -> None:
    rate = RecentRate()
    rate.add(MANY, 10.0, 11.0)
    rate.add(MANY, 40.0, 41.0)
    assert rate.bytes_per_s(42.0) == MANY


def test_writes_that_overlap_count_their_time_once() -> None:
    rate = RecentRate()
    rate.add(MANY, 10.0, 11.0)
    rate.add(MANY, 10.0, 12.0)
    assert rate.bytes_per_s(12.0) == MANY


def test_a_link_without_writes_has_no_rate_and_forgets_old_ones() -> None:
    rate = RecentRate()
    assert rate.bytes_per_s(5.0) is None
    rate.add(MANY, 10.0, 11.0)
    assert rate.bytes_per_s(80.0) is None
    rate.add(2 * MANY, 80.0, 81.0)
    assert rate.bytes_per_s(81.0) == 2 * MANY


def test_little_bytes_measure_latency_and_give_no_rate() -> None:
    rate = RecentRate()
    rate.add(32_768, 10.0, 10.003)
    assert rate.bytes_per_s(11.0) is None
