"""The status of a deployment without a pass: its spec is refused and no earlier one was good, or its namespace cannot
be read. Pure.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from baton_control.errors import FieldProblem
from baton_operator.passes.conditions import Finding, merge_conditions, message_of
from baton_operator.passes.problems import PassProblem
from baton_operator.schema.status import ConditionType, DeploymentStatus, Truth


@dataclass(frozen=True, slots=True)
class RefusedSpec:
    """Why a spec is not carried out."""

    reason: str
    problems: tuple[FieldProblem, ...]

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    @property
    def message(self) -> str:
        return "; ".join(str(problem) for problem in self.problems)

    @property
    def as_problem(self) -> PassProblem:
        """The problem that a pass reports while it carries out the last good spec."""
        return PassProblem(self.reason, f"the last good spec stays: {self.message}", of="spec")


_ALL_OF_NOTHING = (ConditionType.PROGRESSING, ConditionType.READY, ConditionType.AVAILABLE)
"""The conditions of a deployment of which nothing was ever started."""


def refused_status(
    refusal: RefusedSpec, before: DeploymentStatus, generation: int, now: datetime.datetime
) -> DeploymentStatus:
    """The status of a spec that is refused when no earlier one was carried out: nothing runs."""
    reason = refusal.reason
    finding = Finding(ConditionType.DEGRADED, Truth.TRUE, reason, refusal.message)
    findings = [
        finding,
        replace(finding, type=ConditionType.STALLED),
        Finding(ConditionType.RECONCILING, Truth.FALSE, "Stalled", "somebody has to act first"),
    ]
    progressing = Finding(ConditionType.PROGRESSING, Truth.FALSE, reason, "the last good spec keeps serving")
    if before.prefill is None and before.decode is None:  # no spec was carried out yet
        nothing = replace(progressing, message=f"nothing has been started: {finding.message}")
        findings += [replace(nothing, type=kind) for kind in _ALL_OF_NOTHING]
    else:
        findings.append(progressing)
    changed = {
        "summary": reason,
        "message": message_of(finding),
        "observed_generation": generation,
        "conditions": merge_conditions(before.conditions, findings, generation, now),
    }
    return before.model_copy(update=changed)


def unreadable_status(why: str, before: DeploymentStatus, generation: int, now: datetime.datetime) -> DeploymentStatus:
    """The status of a deployment in a namespace that the operator cannot read: its last known state may be wrong."""
    reason, message = "NamespaceUnreadable", f"the operator cannot read the namespace: {why}"
    waits = "nothing is changed until it can be read again"
    findings = (
        Finding(ConditionType.READY, Truth.UNKNOWN, reason, message),
        Finding(ConditionType.RECONCILING, Truth.FALSE, reason, waits),
        Finding(ConditionType.STALLED, Truth.TRUE, reason, message),
        Finding(ConditionType.AVAILABLE, Truth.UNKNOWN, reason, message),
        Finding(ConditionType.PROGRESSING, Truth.FALSE, reason, waits),
        Finding(ConditionType.DEGRADED, Truth.TRUE, reason, message),
    )
    conditions = merge_conditions(before.conditions, findings, generation, now)
    changed = {"summary": reason, "message": message_of(findings[0]), "conditions": conditions}
    return before.model_copy(update=changed)
