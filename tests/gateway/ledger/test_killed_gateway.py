"""Real gateways and workers that are killed while clients count what they get: the campaign, in small."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from campaigns.lanes import Plan
from campaigns.ledger import run

pytestmark = pytest.mark.processes


def test_after_kills_under_load_each_request_is_in_the_ledger_once_with_what_its_client_received(
    tmp_path: Path,
) -> None:
    verdict = run(tmp_path, Plan({"kills": 2}, 4, time.monotonic() + 600.0))
    assert verdict.problems == []
    assert sum(count for what, count in verdict.counts.items() if what.startswith("kills: ")) == 2
    assert verdict.counts["accepted"] > 10
    assert verdict.counts["requests that break the rule"] == 0
