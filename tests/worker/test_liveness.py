"""A worker is live while its engine moves; waiting for others is not standing still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.endpoints import is_live

STATS = Scheduler(EngineConfig(num_blocks=4, block_tokens=4, max_slots=2, max_context_tokens=8)).stats()


@pytest.mark.parametrize(
    ("running", "waiting", "turned", "stepped", "work_since", "live"),
    [
        (0, 0, 99.0, 0.0, 0.0, True),
        (0, 0, 39.0, 0.0, 0.0, False),
        (1, 0, 99.0, 50.0, 10.0, True),
        (1, 0, 99.0, 39.0, 10.0, False),
        (1, 0, 99.0, 10.0, 95.0, True),
        (0, 5, 99.0, 10.0, 10.0, True),
    ],
    ids=["idle", "loop stands", "steps", "no step for a minute", "work just came", "waiting for others"],
)
def test_progress_is_what_counts(
    running: int, waiting: int, turned: float, stepped: float, work_since: float, live: bool
) -> None:
    stats = replace(STATS, running=running, waiting=waiting)
    snapshot = EngineSnapshot(stats, 1, 0.1, turned_s=turned, stepped_s=stepped, work_since_s=work_since)
    assert is_live(snapshot, now=100.0) is live
