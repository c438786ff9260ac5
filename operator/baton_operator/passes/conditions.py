"""Conditions: setting one with a stable transition time, and keeping their list in a fixed order.

A condition's `lastTransitionTime` changes only with its status; otherwise every pass would write a new status.
`deployment_status` decides which conditions a deployment has.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from baton_operator.schema.status import Condition, ConditionType, Truth

MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of one condition by one pass."""

    type: enum.StrEnum
    truth: Truth
    reason: str
    message: str = ""


def merge_conditions(
    before: Iterable[Condition], findings: Iterable[Finding], generation: int, now: datetime.datetime
) -> tuple[Condition, ...]:
    """The conditions after a pass, in the order of ConditionType.

    Conditions without a finding stay unchanged, with their observed generation; types that this version does not know
    are kept at the end. `now` is aware. Raises ValidationError for a reason that is no CamelCase word.
    """
    old = {condition.type: condition for condition in before}
    new: dict[str, Condition] = {
        finding.type.value: _condition(finding, old.get(finding.type), generation, now) for finding in findings
    }
    by_type: dict[str, Condition] = {**old, **new}
    known = [by_type[kind] for kind in ConditionType if kind in by_type]
    return (*known, *(condition for kind, condition in by_type.items() if kind not in set(ConditionType)))


def message_of(finding: Finding) -> str:
    """The message of a finding within bounds; never empty, because API servers such as 1.20 turn "" into null."""
    message = finding.message or finding.reason
    return message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…"


def _condition(finding: Finding, before: Condition | None, generation: int, now: datetime.datetime) -> Condition:
    is_same = before is not None and before.status == finding.truth
    raw = {
        "type": finding.type.value,
        "status": finding.truth.value,
        "reason": finding.reason,
        "message": message_of(finding),
        "lastTransitionTime": before.last_transition_time if before is not None and is_same else timestamp(now),
        "observedGeneration": generation,
    }
    return Condition.model_validate(raw)


def timestamp(moment: datetime.datetime) -> str:
    """An aware time as Kubernetes writes it: UTC, whole seconds. Raises ValueError for one without a zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
