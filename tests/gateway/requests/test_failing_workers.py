"""Workers that fail what they are given are chosen last for a while."""

from __future__ import annotations

import pytest

from baton_gateway.requests.failing_workers import (
    AVOIDED_S,
    FAILURES,
    ITS_OWN,
    MAX_WORKERS,
    WITHIN_S,
    FailingWorkers,
)
from baton_wire.messages.values import Reason

BAD, GOOD = b"bad", b"good"


def test_a_worker_that_fails_again_and_again_is_avoided_until_it_is_tried_again() -> None:
    failing = FailingWorkers()
    for number in range(FAILURES):
        assert failing.avoided(0.1 * number) == set()
        failing.record(BAD, Reason.INTERNAL, 0.1 * number)
    last_s = 0.1 * (FAILURES - 1)
    assert failing.avoided(last_s) == failing.avoided(last_s + AVOIDED_S - 0.1) == {BAD}
    assert failing.avoided(last_s + AVOIDED_S) == set()
    failing.record(BAD, Reason.INTERNAL, last_s + AVOIDED_S)
    assert failing.avoided(last_s + AVOIDED_S) == {BAD}
    assert failing.avoided(last_s + AVOIDED_S + WITHIN_S + 0.1) == set()
    assert len(failing) == 0


def test_failures_far_apart_are_nobodys_habit() -> None:
    failing = FailingWorkers()
    for number in range(3 * FAILURES):
        failing.record(GOOD, Reason.INTERNAL, number * WITHIN_S)
        assert failing.avoided(number * WITHIN_S) == set()


@pytest.mark.parametrize("reason", sorted(set(Reason) - ITS_OWN))
def test_what_others_or_the_request_are_to_blame_for_counts_against_no_worker(reason: Reason) -> None:
    failing = FailingWorkers()
    for _ in range(2 * FAILURES):
        failing.record(GOOD, reason, 0.0)
    assert failing.avoided(0.0) == set()


def test_a_bounded_number_of_workers_is_remembered() -> None:
    failing = FailingWorkers()
    for number in range(2 * MAX_WORKERS):
        failing.record(number.to_bytes(4), Reason.STALLED, 0.0)
    assert len(failing) == MAX_WORKERS
