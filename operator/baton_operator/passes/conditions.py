"""Conditions: how one is set so that its transition time is stable, and how their list is kept in a fixed order.

A condition's `lastTransitionTime` moves only when its status does: otherwise every pass would write a new status. What
the conditions of a deployment are is decided elsewhere.
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
    """What one pass says about one condition."""

    type: enum.StrEnum
    truth: Truth
    reason: str
    message: str = ""


def merge_conditions(
    before: Iterable[Condition], findings: Iterable[Finding], generation: int, now: datetime.datetime
) -> tuple[Condition, ...]:
    """The conditions after a pass, in the order of ConditionType.

    Those that the pass says nothing about stay as they are, with the generation that they were observed at; types that
    this version does not know are kept at the end. `now` is aware. Raises ValidationError for a reason that is no
    CamelCase word.
    """
    old = {condition.type: condition for condition in before}
    new: dict[str, Condition] = {
        finding.type.value: _condition(finding, old.get(finding.type), generation, now) for finding in findings
    }
    by_type: dict[str, Condition] = {**old, **new}
    known = [by_type[kind] for kind in ConditionType if kind in by_type]
    return (*known, *(condition for kind, condition in by_type.items() if kind not in set(ConditionType)))


def message_of(finding: Finding) -> str:
    """Its message within bounds; never empty, as API servers such as 1.20 turn an applied "" into null."""
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
