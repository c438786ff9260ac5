"""Jumps of the load: believed at once, unless those of the past were over before a worker could have helped."""

from __future__ import annotations

from baton_control.sizing.forecast import forecast

CALM, HIGH = [4.0] * 24, [12.0] * 6
"""Requests per second in buckets of ten seconds: four minutes, and a minute of burst."""


def test_the_first_jump_is_believed() -> None:
    ahead = forecast([*CALM, *CALM, *HIGH[:1]], 10.0, 150.0, 0.8)
    assert ahead.is_step
    assert ahead.mean == 12.0


def test_a_jump_is_not_believed_to_last_when_those_before_it_did_not() -> None:
    ahead = forecast([*CALM, *HIGH, *CALM, *HIGH[:1]], 10.0, 150.0, 0.8)
    assert not ahead.is_step
    assert ahead.mean < 8.0


def test_it_is_believed_where_a_worker_is_there_in_time() -> None:
    ahead = forecast([*CALM, *HIGH, *CALM, *HIGH[:1]], 10.0, 30.0, 0.8)
    assert ahead.is_step


def test_one_of_several_that_stayed_is_enough() -> None:
    short = [*CALM, *HIGH]
    stayed = [*CALM, *[12.0] * 30]
    assert forecast([*short, *stayed, *CALM, *HIGH[:2]], 10.0, 150.0, 0.8).is_step


def test_one_that_comes_again_while_a_worker_started_for_it_would_serve_is_believed() -> None:
    again = [*CALM, *HIGH, *CALM[:12], *HIGH]
    assert forecast([*again, *CALM, *CALM, *HIGH[:1]], 10.0, 150.0, 0.8).is_step
    assert not forecast([*again, *CALM, *CALM, *HIGH[:1]], 10.0, 90.0, 0.8).is_step, "calm for 90 to 180 s behind it"
