"""Real gateways and workers that are killed while clients count what they get: the campaign, in small."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaigns.ledger import run

pytestmark = pytest.mark.processes


def test_after_kills_under_load_each_request_is_in_the_ledger_once_with_what_its_client_received(
    tmp_path: Path,
) -> None:
    verdict, load, killed = run(tmp_path, kills=2, seed=4)
    assert verdict.problems == []
    assert killed.total() == 2
    assert sum(count.is_accepted for count in load.counts) > 10
    assert sum(verdict.kinds.values()) == len(load.counts)
