"""Campaigns in lanes: a verdict is that of lanes that ran."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from campaigns.lanes import Campaign, LaneVerdict, Plan


def test_a_campaign_without_kills_runs_once_however_many_lanes_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: it had no lane, ran nothing, and held."""
    plans: list[Plan] = []

    def run(folder: Path, plan: Plan) -> LaneVerdict:
        assert folder.is_dir()
        plans.append(plan)
        return LaneVerdict(problems=["a rule is broken"])

    verdict = tmp_path / "verdict.json"
    monkeypatch.setattr(os, "nice", lambda increment: 0)
    monkeypatch.setattr(sys, "argv", ["ledger", "--kills=0", "--lanes=4", f"--verdict={verdict}"])
    assert Campaign("ledger", None, {"kills": 20}, run).main() == 1
    assert [plan.amounts for plan in plans] == [{"kills": 0}]
    assert json.loads(verdict.read_text())["problems"] == ["a rule is broken"]
