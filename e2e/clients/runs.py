"""Runs clients of the API, from their own environment, against a served model."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from e2e.clients.environment import Environment

PROGRAMS = Path(__file__).parent / "programs"
CLIENT_S = 300


@dataclass(frozen=True)
class Clients:
    """Runs clients of one environment against a served model."""

    python: Path
    endpoint: str
    folder: Path
    limit_s: float = CLIENT_S

    def of(self, environment: Environment) -> Clients:
        """The clients of another environment. Fails the test if that is not installed."""
        return replace(self, python=installed(environment))

    def tool(self, name: str, *arguments: str) -> str:
        """A program of the clients' environment; what it printed."""
        return self._run([str(self.python.parent / name), *arguments])

    def program(self, name: str, *arguments: str) -> Any:
        """A program of this folder, in the clients' environment: the JSON value that its last line is."""
        output = self._run([str(self.python), str(PROGRAMS / f"{name}.py"), self.endpoint, *arguments])
        return json.loads(output.strip().splitlines()[-1])

    def _run(self, command: list[str]) -> str:
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self.folder / "hub")}
        keys = {"OPENAI_API_KEY": "unused", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "VLLM_NO_USAGE_STATS": "1"}
        ended = subprocess.run(
            command, cwd=self.folder, env=os.environ | offline | keys, capture_output=True, text=True,
            timeout=self.limit_s, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout[-4_000:] + ended.stderr[-8_000:]
        return ended.stdout


def installed(environment: Environment) -> Path:
    """The interpreter of an environment. Fails the test if it is not installed, since a skipped client would hide."""
    python = environment.interpreter()
    if python is None:
        pytest.fail(f"the environment {environment.name!r} is not installed: `make test-clients` installs it")
    return python
