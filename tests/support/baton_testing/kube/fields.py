"""Field ownership of an object: server-side apply as an API server does it, on plain data.

A path is a tuple of steps: `f:name` for a field, `k:{...}` for the entry of a list that has keys. Lists without keys
and selectors are owned as a whole. An entry also has a path of its own, ending in `.`: who applied it, owns that it
exists.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Mapping
from typing import Any

import msgspec

Json = dict[str, Any]
Path = tuple[str, ...]
Fields = frozenset[Path]

LIST_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
    "conditions": ("type",),
    "imagePullSecrets": ("name",),
    "revisions": ("revision",),
}
"""Lists whose entries are identified by fields; for `ports` they depend on the place."""
CUSTOM, CUSTOM_LISTS = ("LLMDeployment", "LLMPool"), ("conditions", "revisions", "ownerReferences")
"""Kinds whose definitions make all other lists atomic."""
SETS = frozenset({"finalizers"})
ATOMIC = frozenset(
    {"selector", "matchLabels", "nodeSelector", "labelSelector", "podSelector", "data.ControllerRevision"}
)
NEVER_OWNED = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(("f:metadata", f"f:{name}") for name in ("name", "namespace", "uid", "resourceVersion", "generation")),
        *(
            ("f:metadata", f"f:{name}")
            for name in ("creationTimestamp", "selfLink", "managedFields", "deletionTimestamp")
        ),
        *(("f:metadata", f"f:{name}") for name in ("generateName", "deletionGracePeriodSeconds")),
    }
)


def copied(value: Json) -> Json:
    """Plain data once more."""
    copy: Json = msgspec.json.decode(msgspec.json.encode(value))
    return copy


def owned_paths(value: Json) -> Fields:
    """The paths that applying an object would own."""
    return frozenset(leaves(value))


def leaves(value: Json) -> dict[Path, Any]:
    """The paths that applying an object would own, with the values there."""
    leaves_found: dict[Path, Any] = {}
    _collect(value, (), str(value.get("kind")), leaves_found)
    return {path: value for path, value in leaves_found.items() if path not in NEVER_OWNED}


def value_at(value: Any, path: Path) -> Any:
    """The value of an object at a path; `ABSENT`: it has none."""
    for step in path:
        if step == ".":
            return ABSENT if value is ABSENT else "."
        if step.startswith("f:"):
            value = value.get(step[2:], ABSENT) if isinstance(value, dict) else ABSENT
        else:
            value = next((item for item in value if _key(item, step)), ABSENT) if isinstance(value, list) else ABSENT
        if value is ABSENT:
            return ABSENT
    return value


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()


def merged(live: Json, config: Json, removed: Fields) -> Json:
    """The live object with what `config` says, and without the removed paths."""
    merged_body: Json = _merge(copied(live), config, "", str(config.get("kind", live.get("kind"))))
    for path in sorted(removed, key=lambda path: (path[-1] != ".", -len(path))):
        gone = path[:-1] if path[-1] == "." else path
        _remove(merged_body, gone)
        while len(gone) > 1 and value_at(merged_body, gone[:-1]) in ({}, []):  # goes with the last of what it held
            gone = gone[:-1]
            _remove(merged_body, gone)
    return merged_body


@functools.lru_cache(maxsize=2048)
def as_fields_v1(fields: Fields) -> Json:
    """Paths as `managedFields` shows them; not to be changed."""
    tree: Json = {}
    for path in sorted(fields):
        node = tree
        for step in path:
            node = node.setdefault(step, {})
    return tree


def from_fields_v1(tree: Json, at: Path = ()) -> Fields:
    """The paths that an entry of `managedFields` shows."""
    below = [
        from_fields_v1(subtree, (*at, step)) if subtree else frozenset({(*at, step)}) for step, subtree in tree.items()
    ]
    return frozenset().union(*below)


def _collect(value: Any, at: Path, kind: str, leaves_found: dict[Path, Any]) -> None:
    name = at[-1][2:] if at and at[-1].startswith("f:") else ""
    if isinstance(value, dict) and value and not (at and is_atomic(at, kind)):
        for field, item in value.items():
            _collect(item, (*at, f"f:{field}"), kind, leaves_found)
        return
    keys = list_keys(at, kind) if isinstance(value, list) else None
    if isinstance(value, list) and name in SETS:
        leaves_found |= {(*at, f"v:{json.dumps(item)}"): item for item in value}
    elif isinstance(value, list) and keys and value:
        for item in value:
            step = key_step(item, keys)
            leaves_found[(*at, step, ".")] = "."
            _collect(item, (*at, step), kind, leaves_found)
    else:
        leaves_found[at] = value


def is_atomic(at: Path, kind: str) -> bool:
    """True if a mapping is owned as a whole."""
    name = at[-1][2:]
    return name in ATOMIC or (name == "data" and kind == "ControllerRevision")


def list_keys(at: Path, kind: str) -> tuple[str, ...] | None:
    """The fields that tell the entries of a list apart; None for a list that is owned as a whole."""
    name = at[-1][2:] if at else ""
    if name == "ports":
        if kind == "Service":
            return ("port", "protocol")
        return ("containerPort", "protocol") if "f:containers" in at else None
    if kind in CUSTOM and name not in CUSTOM_LISTS:
        return None
    return LIST_KEYS.get(name)


def key_step(entry: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return _step(keys, tuple(entry.get(key, "TCP" if key == "protocol" else None) for key in keys))


@functools.lru_cache(maxsize=4096)
def _step(keys: tuple[str, ...], values: tuple[Any, ...]) -> str:
    return "k:" + json.dumps(dict(zip(keys, values, strict=True)), sort_keys=True, separators=(",", ":"))


def _key(entry: Any, step: str) -> bool:
    if step.startswith("v:"):
        return bool(json.dumps(entry) == step[2:])
    if not isinstance(entry, dict):
        return False
    return all(entry.get(key, "TCP" if key == "protocol" else None) == value for key, value in _wanted(step))


@functools.cache
def _wanted(step: str) -> tuple[tuple[str, Any], ...]:
    return tuple(json.loads(step[2:]).items())


def _merge(live: Any, config: Any, at: str, kind: str, path: Path = ()) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not (path and is_atomic(path, kind)):
        for field, item in config.items():
            inner = (*path, f"f:{field}")
            live[field] = _merge(live[field], item, field, kind, inner) if field in live else copy.deepcopy(item)
        return live
    keys = list_keys(path, kind) if isinstance(config, list) else None
    if keys and isinstance(live, list):
        for item in config:
            step = key_step(item, keys)
            place = next((number for number, entry in enumerate(live) if _key(entry, step)), None)
            if place is None:
                live.append(copy.deepcopy(item))
            else:
                live[place] = _merge(live[place], item, "", kind, (*path, step))
        return live
    if isinstance(config, list) and isinstance(live, list) and path and path[-1][2:] in SETS:
        return live + [item for item in config if item not in live]
    return copy.deepcopy(config)


def _remove(value: Any, path: Path) -> None:
    *way, last = path
    for step in way:
        value = value_at(value, (step,))
        if value is ABSENT:
            return
    if last.startswith("f:") and isinstance(value, dict):
        value.pop(last[2:], None)
    elif isinstance(value, list):
        value[:] = [item for item in value if not _key(item, last)]
