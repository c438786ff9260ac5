"""The health check for Argo CD comes to the verdict of kstatus in every planted cause, and names the cause."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_testing.kube.argo_health import SCRIPT, judge
from baton_testing.kube.causes import CAUSES
from baton_testing.kube.planted_causes import play

Json = dict[str, Any]
VERDICTS = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}
EXAMPLES = Path(__file__).parents[3] / "examples"


def kstatus(live: Json) -> str:
    """The status that kstatus computes from the generation and the conditions of an unknown kind (its `GetStatus`)."""
    status = live.get("status", {})
    if status.get("observedGeneration", 0) != live["metadata"]["generation"]:
        return "InProgress"
    truth = {condition["type"]: condition["status"] for condition in status.get("conditions", ())}
    if truth.get("Reconciling") == "True":
        return "InProgress"
    if truth.get("Stalled") == "True":
        return "Failed"
    return "Current" if truth.get("Ready", "True") == "True" else "InProgress"


def test_every_planted_cause_gets_the_verdict_of_kstatus_and_its_name() -> None:
    seen = [play(cause).seen for cause in CAUSES]
    verdicts = judge(seen)
    wrong = []
    for cause, live, (health, message) in zip(CAUSES, seen, verdicts, strict=True):
        expected = "Suspended" if cause.reason == "ScaledToZero" else VERDICTS[kstatus(live)]
        is_named = health == "Healthy" or cause.reason in message
        if health != expected or not is_named or (health == "Healthy" and not cause.is_ready):
            wrong.append((cause.name, health, expected, message))
    assert wrong == []
    assert {health for health, _ in verdicts} == {"Progressing", "Degraded", "Suspended"}


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        ({"metadata": {"generation": 1}}, "Progressing"),
        ({"metadata": {"generation": 1}, "status": {}}, "Progressing"),
        ({"metadata": {"generation": 1}, "status": {"conditions": []}}, "Progressing"),
        ({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving", "message": "x"}]}}, "Progressing"),
        ({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving"}]}}, "Healthy"),
        ({"metadata": {}, "status": {"conditions": [
            {"type": "Ready", "status": "Unknown", "reason": "RoutableUnknown", "message": "x"}]}}, "Progressing"),
    ],
)  # fmt: skip
def test_a_status_that_is_missing_or_old_is_no_health(live: Json, expected: str) -> None:
    assert judge([live])[0][0] == expected


def test_the_patch_for_argo_cd_has_the_script() -> None:
    patch = yaml.safe_load((EXAMPLES / "argo-cd" / "argocd-cm.yaml").read_text(encoding="utf-8"))
    script = patch["data"]["resource.customizations.health.baton.dev_LLMDeployment"]
    assert script == SCRIPT.read_text(encoding="utf-8")
