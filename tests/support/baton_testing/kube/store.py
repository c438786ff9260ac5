"""The store of an API server in memory: versions, identities, owners of fields, deletion, and the history for watches.

Synchronous and without any client's rights; `memory` is the client. Objects that are handed out or in are copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from baton_operator.kube.kube_api import AlreadyExists, Change, Conflict, Expired, Invalid, NotFound, Resource
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.fields import (
    ABSENT,
    Fields,
    Path,
    as_fields_v1,
    copied,
    from_fields_v1,
    leaves,
    merged,
    owned_paths,
    value_at,
)

Json = dict[str, Any]
Place = tuple[Resource, str, str]
HISTORY = 4000
APPLY, UPDATE = "Apply", "Update"
SUBRESOURCE_FIELDS = {"status": ("status",), "scale": ("spec",)}


@dataclass(frozen=True, slots=True)
class Manager:
    """An owner of fields, and the operation that gave them to it."""

    name: str
    operation: str
    subresource: str = ""


@dataclass(slots=True)
class Stored:
    body: Json
    """Without managedFields."""
    owners: dict[Manager, Fields] = field(default_factory=dict)
    _of: Json | None = None
    _leaves: dict[Path, Any] = field(default_factory=dict)

    @property
    def leaves(self) -> dict[Path, Any]:
        """Leaves of the present body, which is replaced as a whole whenever it changes."""
        if self._of is not self.body:
            self._of, self._leaves = self.body, leaves(self.body)
        return self._leaves


@dataclass(frozen=True, slots=True)
class Logged:
    """One change, for watches."""

    version: int
    resource: Resource
    change: Change
    before: Json | None
    after: Json


class Store:
    """All objects. `now` is the wall clock as text, `kinds` what the server knows of its resources."""

    def __init__(self, kinds: Kinds, now: Callable[[], str]) -> None:
        self.kinds, self._now = kinds, now
        self._objects: dict[Place, Stored] = {}
        self._version = 100
        self._uids = 0
        self._log: list[Logged] = []
        self._oldest = 100
        """Changes up to this version are no longer known."""
        self._listeners: set[asyncio.Event] = set()
        self.on_commit: list[Callable[[Resource, Change, Json | None, Json], None]] = []
        """Called after each change with the object before and after."""

    def adopt(self, other: Store) -> None:
        """Begin with the objects of another store; nothing is shared that changes."""
        self._objects = {place: Stored(entry.body, dict(entry.owners)) for place, entry in other._objects.items()}
        self._version, self._uids = other._version, other._uids
        self._oldest = other._version

    # Reading

    @property
    def version(self) -> int:
        return self._version

    def read(self, resource: Resource, namespace: str, name: str) -> Json:
        return self._shown(self._stored_at(resource, namespace, name))

    def peek(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """The object itself, not to be changed; None when there is none."""
        entry = self._objects.get((resource, namespace, name))
        return None if entry is None else entry.body

    def all(self, resource: Resource, namespace: str | None = None) -> Iterator[Json]:
        """The objects of a kind themselves, not to be changed, by namespace and name."""
        places = [place for place in self._objects if place[0] == resource and namespace in (None, place[1])]
        for place in sorted(places, key=lambda place: place[1:]):
            if place in self._objects:
                yield self._objects[place].body

    def everything(self) -> Iterator[tuple[Resource, Json]]:
        for place, stored in list(self._objects.items()):
            yield place[0], stored.body

    def shown(self, resource: Resource, namespace: str, name: str) -> Json:
        return self._shown(self._stored_at(resource, namespace, name))

    def changes(self, resource: Resource, since: int) -> list[Logged]:
        """Changes of a kind after a version. Raises Expired when some are no longer known."""
        if since < self._oldest:
            raise Expired(f"too old resource version: {since} ({self._oldest})")
        return [event for event in self._log if event.version > since and event.resource == resource]

    def listen(self, event: asyncio.Event) -> None:
        self._listeners.add(event)

    def unlisten(self, event: asyncio.Event) -> None:
        self._listeners.discard(event)

    def compact(self) -> None:
        """Forget all history: a watch from before now has to list again."""
        self._log.clear()
        self._oldest = self._version

    # Writing

    def create(self, resource: Resource, body: Json, manager: str, operation: str = UPDATE) -> Json:
        body = copied(body)
        metadata = body.setdefault("metadata", {})
        if "name" not in metadata and "generateName" in metadata:
            metadata["name"] = f"{metadata['generateName']}{self._uids:05x}"
        place = (resource, str(metadata["namespace"]), str(metadata["name"]))
        if place in self._objects:
            raise AlreadyExists(f'{resource.plural} "{place[2]}" already exists')
        if metadata.get("resourceVersion"):
            raise Invalid("resourceVersion should not be set on objects to be created")
        if "uid" in metadata:
            raise Conflict(f"Precondition failed: UID in precondition: {metadata['uid']}, UID in object meta: ")
        if self.kinds.has_status(resource):
            body.pop("status", None)
        owned = owned_paths(body)
        self._uids += 1
        metadata |= {"uid": f"uid-{self._uids:06}", "creationTimestamp": self._now(), "generation": 1}
        body = self.kinds.admit(resource, body, None)
        if operation == UPDATE:
            owned = owned_paths(body)  # with the server's defaults
        stored = Stored(body, {Manager(manager, operation): owned})
        self._objects[place] = stored
        self._commit(resource, Change.ADDED, None, stored)
        return self._shown(stored)

    def replace(self, resource: Resource, body: Json, manager: str, subresource: str = "") -> Json:
        """A PUT: the fields that change become the manager's."""
        body = copied(body)
        metadata = body["metadata"]
        stored = self._stored_at(resource, metadata["namespace"], metadata["name"])
        self._check(stored, metadata.get("uid"), metadata.get("resourceVersion"))
        scoped = self._scoped(resource, stored.body, body, subresource)
        for name in ("uid", "creationTimestamp", "generation", "deletionTimestamp"):
            scoped["metadata"].pop(name, None)
            if name in stored.body["metadata"]:
                scoped["metadata"][name] = stored.body["metadata"][name]
        changed = _changed(stored.leaves, leaves(scoped))
        owners = {who: paths - changed for who, paths in stored.owners.items()}
        mine = Manager(manager, UPDATE, subresource)
        paths = {path for path in changed if value_at(scoped, path) is not ABSENT}
        owners[mine] = owners.get(mine, frozenset()) | paths
        return self._write(resource, stored, scoped, owners, subresource)

    def set_managed_fields(
        self, resource: Resource, namespace: str, name: str, entries: Iterable[Json], uid: str, version: str
    ) -> Json:
        """Set the owners of fields from `managedFields`."""
        stored = self._stored_at(resource, namespace, name)
        self._check(stored, uid, version)
        owners = {
            Manager(entry["manager"], entry["operation"], entry.get("subresource", "")): from_fields_v1(
                entry["fieldsV1"]
            )
            for entry in entries
        }
        return self._write(resource, stored, copied(stored.body), owners, "")

    def apply(self, resource: Resource, config: Json, manager: str, force: bool, subresource: str = "") -> Json:
        """A server-side apply."""
        config = _as_written_by_an_apply(copied(config))
        metadata = config["metadata"]
        stored = self._objects.get((resource, str(metadata["namespace"]), str(metadata["name"])))
        if stored is None:
            if subresource:
                raise NotFound(f'{resource.plural} "{metadata["name"]}" not found')
            return self.create(resource, config, manager, APPLY)
        self._check(stored, metadata.pop("uid", None), metadata.pop("resourceVersion", None))
        config = self._part(resource, config, subresource)
        config = self.kinds.pruned(resource, config)
        mine = Manager(manager, APPLY, subresource)
        applied_leaves, stands = leaves(config), stored.leaves
        paths = frozenset(applied_leaves)
        owners = dict(stored.owners)
        rivals: dict[str, Path] = {}
        for who, theirs in stored.owners.items():
            clash = {path for path in paths & theirs if applied_leaves[path] != stands.get(path, ABSENT)}
            if who == mine or not clash:
                continue
            rivals[who.name] = min(clash)
            owners[who] = theirs - clash
        if rivals and not force:
            text = "; ".join(f'conflict with "{name}": {"".join(path)}' for name, path in rivals.items())
            raise Conflict(f"Apply failed with {len(rivals)} conflict: {text}", tuple(rivals))
        before = stored.owners.get(mine, frozenset())
        others = frozenset().union(*(fields for who, fields in owners.items() if who != mine))
        gone = before - paths
        removed = frozenset(path for path in gone if not any(other[: len(path)] == path for other in others))
        owners[mine] = paths
        written = _as_written_by_an_apply(merged(stored.body, config, removed))
        return self._write(resource, stored, written, owners, subresource)

    def scale(self, resource: Resource, namespace: str, name: str, replicas: int, manager: str) -> Json:
        """An update of /scale, as `kubectl scale` and autoscalers make it."""
        body = copied(self._stored_at(resource, namespace, name).body)
        body["spec"]["replicas"] = replicas
        body["metadata"].pop("resourceVersion", None)
        return self.replace(resource, body, manager, "scale")

    def delete(
        self, resource: Resource, namespace: str, name: str, uid: str | None = None, version: str | None = None
    ) -> None:
        stored = self._stored_at(resource, namespace, name)
        self._check(stored, uid, version)
        metadata = stored.body["metadata"]
        if metadata.get("finalizers") or self.kinds.drains(resource):
            if "deletionTimestamp" not in metadata:
                marked = copied(stored.body)
                marked["metadata"] |= {"deletionTimestamp": self._now(), "deletionGracePeriodSeconds": 30}
                marked["metadata"]["generation"] += 1
                self._replace_body(resource, stored, marked, stored.owners)
            return
        self.remove(resource, namespace, name)

    def remove(self, resource: Resource, namespace: str, name: str) -> None:
        """Take an object away at once, whatever it waits for."""
        stored = self._objects.pop((resource, namespace, name))
        self._commit(resource, Change.DELETED, stored.body, Stored(copied(stored.body), stored.owners))

    def set_status(self, resource: Resource, namespace: str, name: str, status: Json, manager: str = "kcm") -> None:
        """Write a status if it changes, as a controller does."""
        stored = self._objects.get((resource, namespace, name))
        if stored is not None and stored.body.get("status", {}) != status:
            body = {**copied(stored.body), "status": copied(status)}
            body["metadata"].pop("resourceVersion")
            self.replace(resource, body, manager, "status")

    @contextlib.contextmanager
    def rehearsal(self, is_one: bool) -> Iterator[None]:
        """A dry run: nothing that happens inside stays."""
        if not is_one:
            yield
            return
        snapshot = {place: Stored(entry.body, dict(entry.owners)) for place, entry in self._objects.items()}
        version, uids, log, hooks = self._version, self._uids, list(self._log), self.on_commit
        listeners, self._listeners, self.on_commit = self._listeners, set(), []
        try:
            yield
        finally:
            self._objects, self._version, self._uids, self._log = snapshot, version, uids, log
            self._listeners, self.on_commit = listeners, hooks

    # Inside

    def _stored_at(self, resource: Resource, namespace: str, name: str) -> Stored:
        stored = self._objects.get((resource, namespace, name))
        if stored is None:
            raise NotFound(f'{resource.plural} "{name}" not found')
        return stored

    def _check(self, stored: Stored, uid: object, version: object) -> None:
        metadata = stored.body["metadata"]
        if uid not in (None, "", metadata["uid"]):
            raise Conflict(f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}")
        if version not in (None, "", metadata["resourceVersion"]):
            raise Conflict("the object has been modified; please apply your changes to the latest version")

    def _part(self, resource: Resource, config: Json, subresource: str) -> Json:
        """The part of a configuration that an apply through this subresource may set."""
        identity = {name: config["metadata"][name] for name in ("name", "namespace")}
        if subresource:
            scope = SUBRESOURCE_FIELDS[subresource]
            top = {name: value for name, value in config.items() if name in ("apiVersion", "kind", *scope)}
            return top | {"metadata": identity}
        return {
            name: value for name, value in config.items() if name != "status" or not self.kinds.has_status(resource)
        }

    def _scoped(self, resource: Resource, live: Json, body: Json, subresource: str) -> Json:
        """A whole new body with only what this subresource may change."""
        if subresource:
            scope = {name: body[name] for name in SUBRESOURCE_FIELDS[subresource] if name in body}
            return copied(live) | scope
        if self.kinds.has_status(resource):
            body.pop("status", None)
            return body | ({"status": copied(live["status"])} if "status" in live else {})
        return body

    def _write(
        self, resource: Resource, stored: Stored, body: Json, owners: Mapping[Manager, Fields], subresource: str
    ) -> Json:
        body["metadata"].pop("managedFields", None)
        body["metadata"]["resourceVersion"] = stored.body["metadata"]["resourceVersion"]
        body = self.kinds.admit(resource, body, stored.body)
        owners_left = {who: paths for who, paths in owners.items() if paths}
        is_new_spec = any(
            body.get(name) != stored.body.get(name) for name in {*body, *stored.body} - {"metadata", "status"}
        )
        if is_new_spec and subresource != "status":
            body["metadata"]["generation"] = stored.body["metadata"].get("generation", 1) + 1
        if body != stored.body or owners_left != stored.owners:
            self._replace_body(resource, stored, body, owners_left)
        place = (resource, body["metadata"]["namespace"], body["metadata"]["name"])
        is_free = "deletionTimestamp" in body["metadata"] and not body["metadata"].get("finalizers")
        if is_free and not self.kinds.drains(resource) and place in self._objects:
            self.remove(*place)
        return self._shown(stored)

    def _replace_body(self, resource: Resource, stored: Stored, body: Json, owners: Mapping[Manager, Fields]) -> None:
        before = stored.body
        stored.body, stored.owners = body, dict(owners)
        self._commit(resource, Change.MODIFIED, before, stored)

    def _commit(self, resource: Resource, change: Change, before: Json | None, stored: Stored) -> None:
        self._version += 1
        stored.body["metadata"]["resourceVersion"] = str(self._version)
        shown = self._shown(stored)
        self._log.append(Logged(self._version, resource, change, before, shown))
        if len(self._log) > HISTORY:
            self._oldest = self._log[HISTORY // 2].version
            del self._log[: HISTORY // 2 + 1]
        for listener in self._listeners:
            listener.set()
        for report in self.on_commit:
            report(resource, change, before, shown)

    def _shown(self, stored: Stored) -> Json:
        body = copied(stored.body)
        entries = []
        for who, paths in stored.owners.items():
            entry = {"manager": who.name, "operation": who.operation, "apiVersion": body.get("apiVersion")}
            entry |= {"fieldsType": "FieldsV1", "fieldsV1": as_fields_v1(paths), "time": self._now()}
            entries.append(entry | ({"subresource": who.subresource} if who.subresource else {}))
        body["metadata"]["managedFields"] = entries
        return body


def _changed(old: dict[Path, Any], new: dict[Path, Any]) -> frozenset[Path]:
    both = old.keys() | new.keys()
    return frozenset(path for path in both if path[-1] != "." and old.get(path, ABSENT) != new.get(path, ABSENT))


def _as_written_by_an_apply(body: Json) -> Json:
    """With sorted keys in a ControllerRevision's data; a create leaves them as they came."""
    return body | {"data": json.loads(json.dumps(body["data"], sort_keys=True))} if "data" in body else body
