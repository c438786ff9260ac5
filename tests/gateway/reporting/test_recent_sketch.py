"""The sketch of the last minute forgets what is older."""

from __future__ import annotations

import pytest

from baton_gateway.reporting.recent_sketch import PIECE_S, WINDOW_S, RecentSketch


def test_values_of_the_last_minute_are_kept_and_older_ones_are_forgotten() -> None:
    recent = RecentSketch()
    for second in range(180):
        recent.add(1.0 if second < 90 else 0.01, float(second))
    kept = recent.sketch(179.0)
    assert WINDOW_S - PIECE_S <= kept.count <= WINDOW_S
    assert kept.quantile(0.99) == pytest.approx(0.01, rel=0.02)


def test_a_quiet_minute_leaves_nothing() -> None:
    recent = RecentSketch()
    recent.add(1.0, 1000.0)
    assert recent.sketch(1000.0).count == 1
    assert recent.sketch(1059.9).count <= 1
    assert recent.sketch(1061.0 + PIECE_S).count == 0


def test_values_after_a_pause_join_no_older_ones() -> None:
    recent = RecentSketch()
    recent.add(5.0, 10.0)
    recent.add(0.1, 500.0)
    assert recent.sketch(500.0).count == 1
