"""`baton up` as a child process with its sister commands, as a user runs them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from baton_local.commands.status import as_json
from baton_local.fleet.observation import observe
from baton_local.fleet.record import read_record
from baton_local.fleet.run_dir import RunDir
from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import Child, Ended, Starts, run_to_end, wait_for

BATON = ("-m", "baton_local")
READY_S = 180.0


def manifest(name: str, namespace: str = "tests", **spec: Any) -> dict[str, Any]:
    """An LLMDeployment of the tiny model with one small worker of each role, and fields of its spec changed."""
    pool = {"replicas": {"min": 1, "max": 1}, "engine": {"kvCacheMemory": "16Mi"}}
    usual = {
        "model": {"source": f"file://{tiny_llama.FOLDER}", "servedName": "tiny", "maxContextTokens": 1024},
        "slo": {"ttft": {"target": "500ms", "percentile": 95}, "tpot": {"target": "50ms", "percentile": 95}},
        "prefill": pool,
        "decode": pool,
        "gateway": {"limits": {"maxQueueDuration": "60s"}},  # answers are tested, however slow the machine is
    }
    return {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": usual | spec,
    }


class Up:
    """A running `baton up` of a manifest, or of a file that may be none. As a context it is stopped at the end."""

    def __init__(
        self,
        folder: Path,
        source: Mapping[str, Any] | Path | str,
        *flags: str,
        extra: Mapping[str, str] | None = None,
        program: Sequence[str] = BATON,
        starts: Starts | None = None,
    ) -> None:
        """`source`: a manifest, or the name of a model. `program`: what Python runs instead of `baton`. `starts`
        (`prepared.service`) forks it and what it starts."""
        program = program if starts is None else ("-m", "baton_testing.processes.forked_posts", *program[1:])
        self.runtime = folder / "runtime"
        self.runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.extra = {"XDG_RUNTIME_DIR": str(self.runtime), **(extra or {})}
        self.endpoint = ""
        asked = (source,) if isinstance(source, str) else ("-f", str(written(folder, source)))
        self.child = Child("up", (*program, "up", *asked, "--port", "0", *flags), folder, self.extra, starts=starts)

    def __enter__(self) -> Up:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.stop(120)

    def await_ready(self) -> str:
        """The endpoint. Raises NotReadyError."""

        def ready() -> str | None:
            assert self.child.is_running(), self.child.output()
            match = re.search(r"^ready (http://\S+)$", self.child.output(), re.MULTILINE)
            return match.group(1) if match else None

        self.endpoint = wait_for(ready, "the ready line", READY_S)
        self.child.family()
        return self.endpoint

    @property
    def run_dir(self) -> RunDir:
        """The name of the only deployment here."""
        (root,) = (path for path in (self.runtime / "baton").iterdir() if (path / "lock").exists())
        return RunDir(root)

    def run(self, *arguments: str) -> Ended:
        return run_to_end((*BATON, *arguments), 180, self.extra)

    def status(self) -> Any:
        """The output of `baton status --json`, made in this process: tests that wait ask many times a second."""
        return json.loads(json.dumps(as_json(observe(read_record(self.run_dir)))))


def written(folder: Path, source: Mapping[str, Any] | Path) -> Path:
    """The manifest as a file; JSON is YAML."""
    if isinstance(source, Path):
        return source
    path = folder / f"{source['metadata']['name']}.yaml"
    path.write_text(json.dumps(source))
    return path
