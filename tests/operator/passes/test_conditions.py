"""Conditions: transition times that stand still, an order that does, and nothing lost that a pass did not look at."""

from __future__ import annotations

import datetime

import pytest
from pydantic import ValidationError

from baton_operator.passes.conditions import Finding, merge_conditions, timestamp
from baton_operator.schema.status import Condition, ConditionType, Truth

NOON = datetime.datetime(2026, 11, 20, 12, tzinfo=datetime.UTC)
LATER = NOON + datetime.timedelta(minutes=5)
AVAILABLE = Finding(ConditionType.AVAILABLE, Truth.TRUE, "PairsRoutable")


def test_the_transition_time_moves_only_with_the_status() -> None:
    [first] = merge_conditions((), [AVAILABLE], 1, NOON)
    [again] = merge_conditions((first,), [Finding(ConditionType.AVAILABLE, Truth.TRUE, "Other", "text")], 2, LATER)
    assert (again.last_transition_time, again.reason, again.observed_generation) == ("2026-11-20T12:00:00Z", "Other", 2)
    [turned] = merge_conditions((again,), [Finding(ConditionType.AVAILABLE, Truth.UNKNOWN, "NoGateway")], 2, LATER)
    assert turned.last_transition_time == "2026-11-20T12:05:00Z"


def test_an_unchanged_finding_changes_nothing() -> None:
    before = merge_conditions((), [AVAILABLE], 1, NOON)
    assert merge_conditions(before, [AVAILABLE], 1, LATER) == before


def test_the_order_is_fixed_and_unknown_types_are_kept() -> None:
    foreign = Condition.model_validate(
        {"type": "Later", "status": "True", "reason": "X", "message": "", "lastTransitionTime": timestamp(NOON)}
    )
    degraded = Finding(ConditionType.DEGRADED, Truth.FALSE, "AllWell")
    for findings in ([AVAILABLE, degraded], [degraded, AVAILABLE]):
        assert [condition.type for condition in merge_conditions((foreign,), findings, 1, NOON)] == [
            "Available",
            "Degraded",
            "Later",
        ]
    assert [
        condition.type
        for condition in merge_conditions(merge_conditions((), [degraded], 1, NOON), [AVAILABLE], 2, LATER)
    ] == [
        "Available",
        "Degraded",
    ]


def test_a_long_message_is_cut_and_a_reason_is_a_word() -> None:
    [cut] = merge_conditions((), [Finding(ConditionType.DEGRADED, Truth.TRUE, "Quota", "x" * 5000)], 1, NOON)
    assert len(cut.message) == 1024
    with pytest.raises(ValidationError):
        merge_conditions((), [Finding(ConditionType.DEGRADED, Truth.TRUE, "two words")], 1, NOON)


def test_a_time_has_a_zone() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    assert timestamp(datetime.datetime(2026, 11, 20, 14, tzinfo=zone)) == "2026-11-20T12:00:00Z"
    with pytest.raises(ValueError, match="no time zone"):
        timestamp(datetime.datetime(2026, 11, 20, 14))
