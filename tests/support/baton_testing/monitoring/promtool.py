"""promtool, which evaluates rules and queries on given series without a server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from find_prometheus import find


def run_promtool(folder: Path, tests: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]] = ()) -> str:
    """The failures of a file of promtool's tests; empty: all hold. Skips the test without promtool."""
    programs = find(may_fetch=False)
    if programs is None:
        pytest.skip(
            "no promtool: `python scripts/find_prometheus.py` fetches it, or name its folder in BATON_PROMETHEUS"
        )
    rules, path = folder / "rules.yaml", folder / "tests.yaml"
    rules.write_text(yaml.safe_dump({"groups": list(groups)}), encoding="utf-8")
    document = {"rule_files": [rules.name], "evaluation_interval": "1m", "tests": list(tests)}
    path.write_text(yaml.safe_dump(document, width=10_000), encoding="utf-8")
    command = [str(programs / "promtool"), "test", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
