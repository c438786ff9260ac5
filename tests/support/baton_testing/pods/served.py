"""The state that tests with real Pods share: one served model, which they change in turn, and the measurements."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from baton_testing.pods.generator import Load
from baton_testing.pods.kubectl import Json, Kubectl, until
from baton_testing.pods.operator_release import ROOT, Release

RESULTS = Path(os.environ.get("BATON_E2E_RESULTS", "/tmp/baton-e2e.json"))
NAME = "tiny"


@dataclass
class World:
    """The state that the tests share."""

    kubectl: Kubectl
    release: Release
    image: str
    second_image: str
    local: Path | None
    measured: dict[str, object] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def note(self, what: str, **fields: object) -> None:
        """A figure for the report."""
        self.measured[what] = fields
        RESULTS.write_text(json.dumps(self.measured, indent=1) + "\n", encoding="utf-8")

    def load(self, name: str, concurrency: int = 3) -> Load:
        return Load(self.kubectl, name, self.image, f"http://{NAME}-gateway.{self.kubectl.namespace}.svc", concurrency)

    def deployment(self, **changes: Any) -> Json:
        """The tiny model as these tests serve it; `changes` are fields of the spec, `a__b=…` for nested ones."""
        made: Json = yaml.safe_load((ROOT / "examples" / "tiny.yaml").read_text(encoding="utf-8"))
        spec: Json = made["spec"]
        spec["model"]["source"] = "file:///models/tiny-llama"
        spec["autoscaling"] = {"mode": "Off"}
        spec["gateway"] = {"limits": {"maxRequestDuration": "30s"}}
        for role in ("prefill", "decode"):
            spec[role]["replicas"] = {"min": 1, "max": 3}
            spec[role]["resources"] = {"cpu": "150m", "memory": "2Gi"}
        for path, value in changes.items():
            *parents, last = path.split("__")
            place = spec
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        return made

    def status(self, name: str = NAME) -> Json:
        deployment = self.kubectl.get("llmdeployment", name) or {}
        status: Json = deployment.get("status", {})
        return status | {"generation": deployment.get("metadata", {}).get("generation")}

    def is_settled(self, prefill: int, decode: int) -> bool:
        """The status has followed the spec, one revision runs, and this many workers of each pool are ready."""
        status = self.status()
        if status.get("observedGeneration") != status["generation"]:
            return False
        progressing = {condition["type"]: condition for condition in status.get("conditions", [])}.get(
            "Progressing", {}
        )
        pods = {role: self.kubectl.pods(workers(role)) for role in ("prefill", "decode")}
        templates = {role: {pod["metadata"]["labels"]["baton.dev/template"] for pod in pods[role]} for role in pods}
        ready = {role: len(self.kubectl.ready(workers(role))) for role in pods}
        counts = {role: len(pods[role]) for role in pods}
        return (
            counts == ready == {"prefill": prefill, "decode": decode}
            and all(len(hashes) == 1 for hashes in templates.values())
            and progressing.get("status") == "False"
        )

    def wait_until_settled(self, prefill: int, decode: int, deadline_s: float = 300) -> float:
        what = f"{prefill} prefill and {decode} decode workers of one revision"
        return until(what, lambda: self.is_settled(prefill, decode), deadline_s, every_s=1.0)


def workers(role: str) -> str:
    return f"baton.dev/deployment={NAME},baton.dev/role={role}"
