"""The facts of a deployment that its history is made of: compared from one look to the next. Pure.

Facts that were never known are not a change when they become known. A value of a variable, which may be a secret, is
compared by its digest and never shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from baton_wire.deployment_history import ChangeKind, DeploymentHistory, HistoryChange, make_change

HISTORY_ANNOTATION = "baton.dev/history"
"""On the object that keeps the history of a deployment on a cluster."""
MAX_FIELDS = 400
MAX_VALUE_CHARS = 60
_HIDDEN = ("env", "podAnnotations", "annotations")
"""Fields whose values are not shown."""


class HistoryFacts(msgspec.Struct, frozen=True):
    """Facts that are compared."""

    version: str = ""
    spec: dict[str, str] = {}
    """Values by the paths of their fields."""
    sizes: dict[str, int] = {}
    """Wanted workers by pool."""
    most: dict[str, int] = {}
    """The most workers that each pool may have."""
    starts: dict[str, int] = {}
    """How often each process has been started, by its name."""
    problems: dict[str, str] = {}
    """Problems by their subjects, such as an edited file that is not in force."""


class StoredHistory(msgspec.Struct, frozen=True):
    """A history as it is stored, with the facts that the next look compares."""

    history: DeploymentHistory = DeploymentHistory()
    facts: HistoryFacts = HistoryFacts()


def read_stored(content: object) -> StoredHistory:
    """Read a history from the text of its annotation; an empty one where there is none that can be read."""
    try:
        return msgspec.json.decode(content if isinstance(content, str) else b"{}", type=StoredHistory)
    except msgspec.DecodeError:
        return StoredHistory()


def find_changes(
    before: HistoryFacts,
    now: HistoryFacts,
    at: float,
    reasons: Mapping[str, str] = {},
    ends: Mapping[str, str] = {},
) -> tuple[HistoryChange, ...]:
    """Return the changes from one look to the next. `reasons`: why each pool has its size. `ends`: how the former run
    of a process ended, where that is known."""
    return (
        *_versions(before, now, at),
        *_spec(before, now, at),
        *_sizes(before, now, at, reasons),
        *_limits(before, now, at),
        *_restarts(before, now, at, ends),
        *_problems(before, now, at),
    )


def flatten_spec(spec: Any, path: str = "") -> dict[str, str]:
    """Return the values of plain data by their paths, at most `MAX_FIELDS`."""
    fields: dict[str, str] = {}
    for name, value in _leaves(spec, path, False):
        if len(fields) == MAX_FIELDS:
            break
        fields[name] = value
    return fields


def _leaves(value: Any, path: str, is_hidden: bool) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, f"{path}.{name}" if path else str(name), is_hidden or name in _HIDDEN)
    elif isinstance(value, list | tuple) and value and isinstance(value[0], dict | list | tuple):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]", is_hidden)
    else:
        text = msgspec.json.encode(value).decode() if not isinstance(value, str) else value
        is_long = len(text) > MAX_VALUE_CHARS
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        yield path, f"#{digest}" if is_hidden else f"{text[: MAX_VALUE_CHARS - 14]}… #{digest}" if is_long else text


def _versions(before: HistoryFacts, now: HistoryFacts, at: float) -> Iterator[HistoryChange]:
    if now.version and now.version != before.version:
        text = f"{before.version} to {now.version}" if before.version else f"began with {now.version}"
        yield make_change(at, ChangeKind.VERSION, "baton", text)


def _spec(before: HistoryFacts, now: HistoryFacts, at: float) -> Iterator[HistoryChange]:
    if not before.spec:
        return
    for path in sorted(before.spec.keys() | now.spec.keys()):
        old, new = before.spec.get(path), now.spec.get(path)
        if old != new:
            yield make_change(at, ChangeKind.SPEC, path, f"{_shown(old)} to {_shown(new)}")


def _shown(value: str | None) -> str:
    return "unset" if value is None else "another value" if value.startswith("#") else value


def _sizes(before: HistoryFacts, now: HistoryFacts, at: float, reasons: Mapping[str, str]) -> Iterator[HistoryChange]:
    for pool, size in now.sizes.items():
        former = before.sizes.get(pool)
        if former is not None and former != size:
            why = reasons.get(pool, "no reason given")
            yield make_change(at, ChangeKind.DECISION, pool, f"{former} to {size}: {why}")


def _limits(before: HistoryFacts, now: HistoryFacts, at: float) -> Iterator[HistoryChange]:
    for pool, size in now.sizes.items():
        is_new = before.sizes.get(pool, 0) != size or before.most.get(pool) != now.most.get(pool)
        if pool in before.sizes and is_new and size == now.most.get(pool) and size > 0:
            workers = "1 worker" if size == 1 else f"{size} workers"
            yield make_change(at, ChangeKind.LIMIT, pool, f"has {workers}, the most that replicas.max allows")


def _restarts(before: HistoryFacts, now: HistoryFacts, at: float, ends: Mapping[str, str]) -> Iterator[HistoryChange]:
    for name, starts in now.starts.items():
        former = before.starts.get(name)
        if former is not None and starts > former:
            why = ends.get(name, "")
            yield make_change(at, ChangeKind.RESTART, name, f"start {starts}{f': {why}' if why else ''}")


def _problems(before: HistoryFacts, now: HistoryFacts, at: float) -> Iterator[HistoryChange]:
    for subject in sorted(before.problems.keys() | now.problems.keys()):
        text = now.problems.get(subject, "the problem is over")
        if text != before.problems.get(subject):
            yield make_change(at, ChangeKind.CONDITION, subject, text)
