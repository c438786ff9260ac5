"""Watches that run while requests are answered: the top line of the status, and the floor of pools."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from baton_testing.pods.kubectl import Failed, Json, is_ready
from baton_testing.pods.served import NAME, World

PROBE_LAG_S = 10.0


@contextmanager
def top_line(world: World, name: str) -> Iterator[dict[str, int]]:
    """While the block runs: how many looks found the condition Ready with each of its statuses, and why if not True.
    One that was another between two looks has turned later than at the look before."""
    looks: dict[str, int] = {}
    stop = threading.Event()

    def look() -> None:
        since, is_over = "", False
        while not is_over:
            is_over = stop.wait(2.0)  # one look at the end, so a short block has one too
            try:
                conditions = world.status().get("conditions", ())
            except Failed:
                continue  # the API server is away
            ready: Json = next((condition for condition in conditions if condition["type"] == "Ready"), {})
            what = ready.get("status", "")
            what += "" if what in ("True", "") else f" {ready['reason']}: {ready['message']}"
            turned, since = since, ready.get("lastTransitionTime", "")
            what += f", turned at {since}" if what == "True" and turned not in ("", since) else ""
            looks[what] = looks.get(what, 0) + 1

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        try:
            yield looks
        finally:
            stop.set()
        looking.result()
    world.note(f"Ready: {name}", looks=looks)


@dataclass
class Watched:
    lowest: dict[str, int] = field(default_factory=dict)
    """Fewest workers of a pool that had become ready, ran and were not being stopped, ever seen."""
    longest_s: float = 0.0
    """The longest time that a pool was under the floor."""
    routable: dict[str, int] = field(default_factory=dict)
    """Fewest workers of a pool that gateways had linked, as the status ever reported."""


@contextmanager
def floor(world: World, name: str, least: int) -> Iterator[Watched]:
    """While the block runs, each pool has `least` workers at every look. One that was ready counts while it runs: a
    probe that is late on a busy machine takes nothing away. What a rollout goes by is what gateways have linked, which
    the kubelet sees at its next probe: for as long as that may take, a pool may seem to be under its floor."""
    watched, stop = Watched(), threading.Event()
    been_ready: set[tuple[str, int]] = set()
    since: dict[str, float] = {}

    def look() -> None:
        while not stop.wait(0.5):
            everything, status = world.kubectl.pods(f"baton.dev/deployment={NAME}"), world.status()
            for role in ("prefill", "decode"):
                routable = status.get(role, {}).get("routable")
                if routable is not None:
                    watched.routable[role] = min(routable, watched.routable.get(role, routable))
                pods = [pod for pod in everything if pod["metadata"]["labels"]["baton.dev/role"] == role]
                been_ready.update((uid_of(pod), restarts(pod)) for pod in pods if is_ready(pod))
                up = sum((uid_of(pod), restarts(pod)) in been_ready for pod in pods)
                watched.lowest[role] = min(up, watched.lowest.get(role, up))
                now = time.monotonic()
                since[role] = now if up >= least else since.get(role, now)
                watched.longest_s = max(watched.longest_s, now - since[role])

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        try:
            yield watched
        finally:
            stop.set()
        looking.result()
    seconds = round(watched.longest_s, 1)
    world.note(f"floor: {name}", seconds_under=seconds, lowest=watched.lowest, routable=watched.routable)
    assert watched.lowest
    assert watched.longest_s < PROBE_LAG_S, watched


def uid_of(pod: Json) -> str:
    return str(pod.get("metadata", {}).get("uid", ""))


def restarts(pod: Json) -> int:
    return sum(container["restartCount"] for container in pod["status"].get("containerStatuses", []))
