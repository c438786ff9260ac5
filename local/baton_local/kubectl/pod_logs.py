"""The logs of a deployment's Pods, merged by the time at which the node took each line."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton_local.errors import StartError
from baton_local.fleet.log_tail import clean
from baton_local.kubectl.cluster_record import ROLE_LABEL, ROLES
from baton_local.kubectl.cluster_source import choose_deployment, pods_of, warn_of
from baton_local.kubectl.pod_access import MAX_LOG_BYTES, PodAccess

POLL_S = 2.0
Json = Mapping[str, Any]


@dataclass(frozen=True, order=True, slots=True)
class LogLine:
    """A line of a Pod's log."""

    at: str
    """The time as Kubernetes writes it, in UTC, which sorts as text."""
    pod: str
    text: str


def parse_lines(pod: str, content: bytes, after: str) -> list[LogLine]:
    """Return the lines of a log with time stamps that are later than a time; empty: all.

    >>> parse_lines("chat-gateway-x", b"2026-11-29T10:00:00.5Z ready\\n", "")
    [LogLine(at='2026-11-29T10:00:00.500000000Z', pod='chat-gateway-x', text='ready')]
    """
    lines = []
    for line in content.decode(errors="replace").split("\n"):
        stamp, _, text = line.partition(" ")
        at = _even(stamp)
        if stamp and at > after:
            lines.append(LogLine(at, pod, clean(text)))
    return lines


def whole_lines(content: bytes) -> bytes:
    """Return a log without the line that its limit in bytes has cut."""
    return content if len(content) < MAX_LOG_BYTES else content[: content.rfind(b"\n") + 1]


def _even(stamp: str) -> str:
    """Return a time stamp with nine digits, so that it sorts as text: Kubernetes leaves out trailing zeros."""
    whole, _, fraction = stamp.removesuffix("Z").partition(".")
    return f"{whole}.{fraction:0<9}Z"


def merge_lines(logs: Iterable[Sequence[LogLine]]) -> list[LogLine]:
    """Merge the lines of several logs by time; lines of one log keep their order at equal times."""
    return sorted((line for lines in logs for line in lines), key=lambda line: line.at)


def matching_pods(pods: Sequence[Json], text: str | None) -> dict[str, str]:
    """Return the Pods of a role, or whose names contain the text, each with its container. Raises StartError."""
    chosen, names = {}, []
    for pod in pods:
        name, labels = str(pod["metadata"]["name"]), pod["metadata"].get("labels") or {}
        names.append(name)
        is_wanted = labels.get(ROLE_LABEL) == text if text in ROLES else text is None or text in name
        if is_wanted:
            chosen[name] = str(pod["spec"]["containers"][0]["name"])
    if text is not None and not chosen:
        raise StartError(f"no Pod {text}: there are {', '.join(sorted(names)) or 'none'}")
    return chosen


def run_cluster_logs(
    access: PodAccess,
    name: str | None,
    worker: str | None,
    since_s: float,
    follow: bool,
    pause: Callable[[float], None] = time.sleep,
) -> int:
    """Print the logs, and with `follow` also new lines and new Pods until Ctrl-C. Raises LocalError."""
    deployment = choose_deployment(access, name)
    last: dict[str, str] = {}
    began = time.monotonic()
    while True:
        pods = matching_pods(pods_of(access, deployment), worker)
        first = {"sinceSeconds": str(max(1, math.ceil(since_s + time.monotonic() - began)))}
        since = {pod: {"sinceTime": last[pod]} if last.get(pod) else first for pod in pods}
        asked = [(pod, {"timestamps": "true", "container": pods[pod], **since[pod]}) for pod in pods]
        answers = dict(zip(pods, access.logs(asked), strict=True))
        logs = []
        for pod, answer in answers.items():
            if isinstance(answer, bytes):
                logs.append(parse_lines(pod, whole_lines(answer), last.get(pod, "")))
                last[pod] = logs[-1][-1].at if logs[-1] else last.get(pod, "")
                if len(answer) >= MAX_LOG_BYTES and not follow:
                    print(f"baton: {pod}: lines after {last[pod]} are missing: --since is too long", file=sys.stderr)
        if not follow or not last:
            warn_of([f"{pod} ({answer})" for pod, answer in answers.items() if isinstance(answer, str)])
        for line in merge_lines(logs):
            print(f"{line.at} {line.pod} | {line.text}", flush=True)
        if not follow:
            return int(bool(pods) and not logs)
        pause(POLL_S)
