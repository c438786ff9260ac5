"""The record of a run on real Pods says how each test ended."""

from __future__ import annotations

import json
from pathlib import Path

from bench.machine import this_machine

from baton_testing.pods.record import Record


def test_a_run_is_kept_by_the_servers_version(tmp_path: Path) -> None:
    record = Record("v1.33.2", 2, "abc", this_machine())
    for phase in ("setup", "call", "teardown"):
        record.ended("serves", phase, "passed", 2.04)
    record.ended("needs a node", "setup", "skipped", 0.0)
    record.ended("drains", "setup", "passed", 0.1)
    record.ended("drains", "call", "failed", 3.0)
    record.ended("drains", "teardown", "passed", 0.1)
    record.ended("ends badly", "call", "passed", 1.0)
    record.ended("ends badly", "teardown", "failed", 1.0)
    path = record.write({"scaled": {"lost": 0}}, tmp_path)
    assert path == tmp_path / "e2e-v1.33.2.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    assert (written["passed"], written["failed"], written["skipped"]) == (1, 2, 1)
    assert written["tests"]["serves"] == {"outcome": "passed", "seconds": 2.0}
    assert (written["server"], written["nodes"], written["measured"]) == ("v1.33.2", 2, {"scaled": {"lost": 0}})
