"""Argo CD's view of objects: the shipped health check, run by a real Lua 5.1."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from find_lua import find

Json = dict[str, Any]
SCRIPT = Path(__file__).parents[4] / "examples" / "argo-cd" / "health.lua"
_RUNNER = """
import json, sys
from lupa.lua51 import LuaRuntime
source, objects = json.load(sys.stdin)
verdicts = []
for given in objects:
    lua = LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    lua.globals().obj = lua.table_from(given, recursive=True)
    verdicts.append(dict(lua.execute(source)))
json.dump(verdicts, sys.stdout)
"""


def judge(objects: Sequence[Json]) -> list[tuple[str, str]]:
    """The health and message of each object; skips the test where there is no Lua."""
    folder = find(may_fetch=False)
    if folder is None:
        pytest.skip("no Lua: `python scripts/find_lua.py` fetches one")
    given = json.dumps([SCRIPT.read_text(encoding="utf-8"), list(objects)])
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{_RUNNER}"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [(verdict["status"], verdict["message"]) for verdict in json.loads(done.stdout)]
