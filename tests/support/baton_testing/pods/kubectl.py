"""kubectl with deadlines, and waiting for what a cluster comes to."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
CALL_S = 60.0


class Failed(Exception):
    """kubectl said no, or nothing in time."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Calls in one namespace."""

    namespace: str
    program: str = shutil.which("kubectl") or "kubectl"

    def run(self, *arguments: str, given: str | None = None, timeout_s: float = CALL_S) -> str:
        """Standard output. Raises Failed."""
        command = [self.program, f"--namespace={self.namespace}", *arguments]
        try:
            done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"kubectl {' '.join(arguments)}: no answer in {timeout_s:g} s") from error
        if done.returncode != 0:
            raise Failed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def apply(self, *manifests: Json) -> None:
        """Server-side apply, schemas of the client's own left aside: the server's are the ones that count."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.run("apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-", given=json.dumps(items))

    def get(self, kind: str, name: str) -> Json | None:
        """The object; None: there is none."""
        text = self.run("get", kind, name, "--ignore-not-found", "-o", "json")
        item: Json | None = json.loads(text) if text.strip() else None
        return item

    def all(self, kind: str, selector: str = "") -> list[Json]:
        items: list[Json] = json.loads(self.run("get", kind, "-l", selector, "-o", "json"))["items"]
        return items

    def pods(self, selector: str) -> list[Json]:
        """Pods that are not being stopped."""
        return [pod for pod in self.all("pods", selector) if "deletionTimestamp" not in pod["metadata"]]

    def ready(self, selector: str) -> list[Json]:
        return [pod for pod in self.pods(selector) if is_ready(pod)]


def is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def until(what: str, is_so: Callable[[], object], deadline_s: float, every_s: float = 0.5) -> float:
    """Wait until it is so; the seconds that took. Raises TimeoutError."""
    started = time.monotonic()
    last: object = None
    while time.monotonic() - started < deadline_s:
        try:
            last = is_so()
            if last:
                return time.monotonic() - started
        except Failed as error:
            last = error
        time.sleep(every_s)
    raise TimeoutError(f"{what}: not in {deadline_s:g} s; last: {last}")
