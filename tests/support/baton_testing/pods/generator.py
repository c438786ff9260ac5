"""A load generator's Pod, and what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from baton_testing.pods.kubectl import Failed, Json, Kubectl, until

HERE = Path(__file__).parent
CLIENT = Path(__file__).parents[4] / "local" / "baton_local"
FILES = {
    **{name: HERE / name for name in ("load.py", "changing_load.py")},
    **{f"baton_local/{name}.py": CLIENT / f"{name}.py" for name in ("__init__", "client", "errors")},
}
"""In the Pod, below /load."""


@dataclass
class Load:
    """One Pod that asks until it is told to stop."""

    kubectl: Kubectl
    name: str
    image: str
    url: str
    concurrency: int = 3
    final: Json = field(default_factory=dict)
    key: str | None = None
    """The API key of its requests; None: they have none."""

    @property
    def command(self) -> list[str]:
        """The command line that Python runs in the Pod."""
        return ["/load/load.py", self.url, str(self.concurrency)]

    def start(self) -> None:
        script = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "load"}}
        data = {path.replace("/", "."): file.read_text(encoding="utf-8") for path, file in FILES.items()}
        self.kubectl.apply({**script, "data": data}, self._pod())
        until(f"Pod {self.name} runs", lambda: self._phase() == "Running", 60)

    def _phase(self) -> str:
        pod = self.kubectl.get("pod", self.name)
        return "" if pod is None else str(pod["status"].get("phase"))

    def lines(self, kind: str) -> list[Json]:
        """The lines of one kind that the load has printed so far."""
        try:
            text = self.kubectl.run("logs", self.name)
        except Failed:
            return []
        return [json.loads(line.partition(" ")[2]) for line in text.splitlines() if line.startswith(f"{kind} ")]

    @property
    def ok(self) -> int:
        counts = self.lines("STAT")
        return int(counts[-1]["ok"]) if counts else 0

    def first_token_at(self, deadline_s: float) -> float:
        """Epoch seconds. Raises TimeoutError."""
        until("the first token", lambda: self.lines("FIRST"), deadline_s, every_s=0.2)
        return float(self.lines("FIRST")[0]["at"])

    def wait_for(self, more: int, deadline_s: float = 120) -> None:
        """Wait until `more` further requests have been answered. Raises TimeoutError."""
        wanted = self.ok + more
        until(f"{more} more answers", lambda: self.ok >= wanted, deadline_s)

    def stop(self) -> Json:
        """Let what is in flight end; counts and answers of the whole run."""
        self.kubectl.run("exec", self.name, "--", "python", "-c", "import os; os.kill(1, 15)")
        until("the load's end", lambda: self.lines("END"), 150)
        self.final = self.lines("END")[-1]
        self.final["failures"] = self.lines("FAIL")
        self.kubectl.run("delete", "pod", self.name, "--wait=false")
        return self.final

    def _pod(self) -> Json:
        restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {
            "name": "load",
            "image": self.image,
            "command": ["python", *self.command],
            "env": [] if self.key is None else [{"name": "BATON_API_KEY", "value": self.key}],
            "volumeMounts": [{"name": "script", "mountPath": "/load"}],
            "securityContext": restricted,
        }
        items = [{"key": path.replace("/", "."), "path": path} for path in FILES]
        spec = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "script", "configMap": {"name": "load", "items": items}}],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": self.name}, "spec": spec}


@dataclass
class ChangingLoad(Load):
    """One Pod that sends requests at given rates, one after the other, and ends by itself."""

    rates: str = ""
    """SECONDS@RATE,… as `changing_load.py` reads them."""

    @property
    def command(self) -> list[str]:
        return ["/load/changing_load.py", self.url, self.rates]

    def wait_until_sent(self, deadline_s: float) -> Json:
        """The outcome of every request. Raises TimeoutError."""
        until("the load's end", lambda: self.lines("END"), deadline_s, every_s=2.0)
        outcome = self.lines("END")[-1]
        self.kubectl.run("delete", "pod", self.name, "--wait=false")
        return outcome
