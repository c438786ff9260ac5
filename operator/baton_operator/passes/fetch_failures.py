"""The tries of a fetch that failed, from the Pods of its Job. Pure.

A Job only counts its failed Pods. What the program wrote last is in the status of each Pod, as the kubelet took it from
the end of the log. The text comes from a process that talks to servers which nobody here controls: it is shortened, and
only printable characters are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from baton_operator.kube.object_fields import (
    Manifest,
    integer,
    is_leaving,
    labels_of,
    mapping,
    mappings,
    metadata_of,
    text,
)
from baton_operator.objects.metadata import FETCH_ROLE, ROLE_LABEL
from baton_operator.passes.problems import shorten
from baton_wire.log_format import as_text

_LINE = re.compile(r"(?:^|\s)(?:ERROR|CRITICAL) baton\.fetch (?:refused|failed): (.*)|^(?:refused|failed): (.*)")
_NUMBERS = re.compile(r"\d+(?:\.\d+){3}|\d{4,}|0x[0-9a-f]+")
"""Addresses, ports and sizes; HTTP's status codes are shorter."""
_GOES_ON = re.compile(r"\d+ of \d+ bytes came")
_MEMORY = "out of memory (OOMKilled): raise spec.model.fetch.resources.memory"


@dataclass(frozen=True, slots=True)
class FetchFailure:
    """The end of one try."""

    text: str
    """The last line of the program, or how its container ended where it wrote none."""
    code: int | None
    """Exit code; None: unknown, or the container never ran."""
    at: str
    """When it ended, as Kubernetes wrote it."""

    def equals(self, other: FetchFailure) -> bool:
        """True if the two tries failed alike. Numbers such as addresses may differ; a download that ended after other
        bytes than before has gone on."""
        if _GOES_ON.search(self.text) and self.text != other.text:
            return False
        return _NUMBERS.sub("#", self.text) == _NUMBERS.sub("#", other.text)


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A fetch Pod whose program has ended while other containers of the Pod run, so that the Job does not go on."""

    sidecars: tuple[str, ...]
    code: int | None
    text: str
    at: str


def fetch_pods(pods: Iterable[Manifest], job: str) -> tuple[Manifest, ...]:
    """The Pods of a Job, the oldest first. `job`: its name."""
    ours = [pod for pod in pods if labels_of(pod).get(ROLE_LABEL) == FETCH_ROLE and _made_by(pod, job)]
    return tuple(sorted(ours, key=_created))


def failures_of(pods: Iterable[Manifest]) -> tuple[FetchFailure, ...]:
    """The tries that failed, the earliest first."""
    failures = [failure for pod in pods if (failure := _failure(pod)) is not None]
    return tuple(sorted(failures, key=lambda failure: failure.at))


def held_pod(pods: Iterable[Manifest]) -> HeldPod | None:
    """The newest Pod whose sidecars outlive the program; None: there is none."""
    held = None
    for pod in pods:
        status = mapping(pod.get("status"))
        ended = _ended(status)
        others = [entry for entry in mappings(status.get("containerStatuses")) if entry.get("name") != FETCH_ROLE]
        running = tuple(sorted(str(entry.get("name")) for entry in others if "running" in mapping(entry.get("state"))))
        if ended and running and status.get("phase") in ("Running", "Pending") and not is_leaving(pod):
            held = HeldPod(running, integer(ended.get("exitCode")), _words(ended), str(ended.get("finishedAt") or ""))
    return held


def _failure(pod: Manifest) -> FetchFailure | None:
    status = mapping(pod.get("status"))
    ended = _ended(status)
    code = integer(ended.get("exitCode"))
    if ended and code != 0:
        return FetchFailure(_words(ended), code, str(ended.get("finishedAt") or _created(pod)[0]))
    if status.get("phase") != "Failed" or code == 0:
        return None
    reason, message = text(status.get("reason")) or "", shorten(status.get("message"))
    return FetchFailure(
        ": ".join(part for part in (reason, message) if part) or "its Pod failed", None, _created(pod)[0]
    )


def _words(ended: Manifest) -> str:
    """The program's last line. Where it wrote none, how the container ended."""
    if ended.get("reason") == "OOMKilled":
        return _MEMORY
    lines = [line for line in as_text(str(ended.get("message") or "")).splitlines() if shorten(line)]
    for line in reversed(lines):
        match = _LINE.search(line)
        if match is not None:
            return shorten(match.group(1) or match.group(2))
    if lines:
        return shorten(lines[-1])
    return f"{shorten(ended.get('reason') or 'ended')}, exit code {ended.get('exitCode', 'unknown')}, without a word"


def _ended(status: Manifest) -> Manifest:
    """How the program's container ended; empty: it runs, or never ran. The program is never restarted in its Pod."""
    for container in mappings(status.get("containerStatuses")):
        if container.get("name") == FETCH_ROLE:
            return mapping(mapping(container.get("state")).get("terminated"))
    return {}


def _made_by(pod: Manifest, job: str) -> bool:
    owners = mappings(metadata_of(pod).get("ownerReferences"))
    return any(owner.get("kind") == "Job" and owner.get("name") == job for owner in owners)


def _created(pod: Manifest) -> tuple[str, str]:
    metadata = metadata_of(pod)
    return str(metadata.get("creationTimestamp") or ""), str(metadata.get("name"))
