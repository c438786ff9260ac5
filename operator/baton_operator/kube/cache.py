"""The cache of one kind of object, which passes read instead of asking the API server.

An object is kept as compact JSON without the fields that no pass reads, so that tens of thousands fit into memory. The
answer to a write goes into the cache, and an event that is older than the cached object is dropped: a pass always sees
its own writes. Resource versions are compared as numbers, which Kubernetes guarantees for its own storage.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

import msgspec

from baton_control.names import Key
from baton_operator.kube.field_owners import is_created_by
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POOLS
from baton_operator.kube.kube_api import Change, Listing, Resource, WatchEvent
from baton_operator.kube.labels import ASSIGNED_ANNOTATION, COST_ANNOTATION, DEPLOYMENT_LABEL, FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest, mapping, mappings, metadata_of

Place = tuple[str, str]
"""Namespace and name."""
REPLICA_OWNERS = "replicaOwners"
"""Field of a cached LLMPool: the owners of its `spec.replicas`; absent when the server did not say."""
CREATED = "baton-created"
"""Field of a cached object's metadata: the operator's create still owns the fields that it set."""
MAX_REMOVED = 16_384
"""Most objects that are remembered as gone, the newest. A late event comes soon or never."""
_POD_STATUS = ("phase", "reason", "message", "conditions", "containerStatuses", "startTime")


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest known version of one object."""

    uid: str
    version: int
    key: Key
    """The LLMDeployment that its label names, or the LLMDeployment itself."""
    data: bytes

    def manifest(self) -> Manifest:
        manifest: Manifest = msgspec.json.decode(self.data)
        return manifest


class Cache:
    """The objects of one kind in `namespaces` (None: in all). `on_change` is called with the LLMDeployment that a
    change concerns. Objects of other namespaces are dropped as they come. An object that is not `ours` counts as
    absent."""

    def __init__(
        self,
        resource: Resource,
        on_change: Callable[[Key], None],
        namespaces: Container[str] | None = None,
        ours: Callable[[Manifest], bool] = lambda manifest: True,
    ) -> None:
        self.resource, self._namespaces, self._ours = resource, namespaces, ours
        self._on_change = on_change
        self._entries: dict[Place, Entry] = {}
        self._places: dict[Key, set[Place]] = {}
        self._removed: dict[str, int] = {}
        """The last versions of deleted objects, by uid: a late event does not bring them back."""
        self._marks: dict[Place, tuple[Entry, str]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def deployments(self) -> Iterable[Key]:
        """Every LLMDeployment that has an object here."""
        return tuple(self._places)

    def get(self, namespace: str, name: str) -> Manifest | None:
        entry = self._entries.get((namespace, name))
        return None if entry is None else entry.manifest()

    def mark(self, namespace: str, name: str, text: str) -> None:
        """Put a note on the present version of an object; its next change removes the note."""
        entry = self._entries.get((namespace, name))
        if entry is not None:
            self._marks[namespace, name] = (entry, text)

    def mark_of(self, namespace: str, name: str) -> str | None:
        """The note on the present version of an object; None: there is none."""
        entry, text = self._marks.get((namespace, name), (None, None))
        return text if entry is not None and self._entries.get((namespace, name)) is entry else None

    def of(self, key: Key) -> tuple[Manifest, ...]:
        """The objects whose label names this LLMDeployment, in the order of their names. It need not own them."""
        return tuple(self._entries[place].manifest() for place in sorted(self._places.get(key, ())))

    def apply_event(self, event: WatchEvent) -> None:
        """Apply an event of a watch."""
        if event.change is Change.BOOKMARK:
            return
        entry = self._entry(event.object)
        if entry is None:
            return
        if event.change is Change.DELETED or not self._ours(event.object):
            self._drop(_place(event.object), entry.uid, entry.version)
        else:
            self._keep(_place(event.object), entry)

    def store(self, manifest: Manifest) -> None:
        """Store the answer to a write or a read. It counts as a change like any other: after a pass that wrote, another
        pass sees the outcome."""
        entry = self._entry(manifest)
        if entry is not None and self._ours(manifest):
            self._keep(_place(manifest), entry)

    def remove(self, namespace: str, name: str) -> None:
        """Remove an object that the server does not have any more."""
        entry = self._entries.get((namespace, name))
        if entry is not None:
            self._drop((namespace, name), entry.uid, entry.version)

    def apply_list(self, listing: Listing, namespace: str | None) -> None:
        """Apply a whole list of one namespace (None: of all). Cached objects that are neither in the list nor newer
        than it are removed."""
        seen: set[Place] = set()
        for manifest in listing.items:
            entry = self._entry(manifest)
            if entry is not None and self._ours(manifest):
                seen.add(_place(manifest))
                self._keep(_place(manifest), entry)
        until = _number(listing.resource_version)
        for place, entry in list(self._entries.items()):
            if place not in seen and namespace in (None, place[0]) and entry.version <= until:
                self._drop(place, entry.uid, entry.version)
        self._removed.clear()

    def _entry(self, manifest: Manifest) -> Entry | None:
        if self._namespaces is not None and _place(manifest)[0] not in self._namespaces:
            return None
        return _entry(self.resource, manifest)

    def _keep(self, place: Place, entry: Entry) -> None:
        old = self._entries.get(place)
        if old is not None and old.uid == entry.uid and old.version >= entry.version:
            return
        if self._removed.get(entry.uid, -1) >= entry.version:
            return
        if old is not None and old.uid != entry.uid and old.version > entry.version:
            return
        if old is not None and old.key != entry.key:
            self._forget(place, old.key)
        self._entries[place] = entry
        self._places.setdefault(entry.key, set()).add(place)
        if old is None or old.data != entry.data:
            self._on_change(entry.key)

    def _drop(self, place: Place, uid: str, version: int) -> None:
        self._removed[uid] = max(version, self._removed.pop(uid, -1))
        if len(self._removed) > MAX_REMOVED:
            del self._removed[next(iter(self._removed))]
        old = self._entries.get(place)
        if old is None or old.uid != uid or old.version > version:
            return
        del self._entries[place]
        self._marks.pop(place, None)
        self._forget(place, old.key)
        self._on_change(old.key)

    def _forget(self, place: Place, key: Key) -> None:
        places = self._places.get(key, set())
        places.discard(place)
        if not places:
            self._places.pop(key, None)


def _entry(resource: Resource, manifest: Manifest) -> Entry | None:
    """The cache entry of an object; None: its label names no LLMDeployment."""
    metadata = metadata_of(manifest)
    namespace, name = str(metadata.get("namespace", "")), str(metadata.get("name", ""))
    label = mapping(metadata.get("labels")).get(DEPLOYMENT_LABEL)
    if resource == DEPLOYMENTS:
        label = name
    elif resource == POOLS:  # watched without a selector, as its label may be removed; this field cannot change
        label = mapping(manifest.get("spec")).get("deployment")
    if not isinstance(label, str) or not namespace:
        return None
    trimmed = _pod(manifest) if resource == PODS else {**manifest, "metadata": _without_fields(metadata)}
    if is_created_by(manifest, FIELD_MANAGER):
        trimmed["metadata"] = {**mapping(trimmed["metadata"]), CREATED: True}
    if resource == POOLS and "managedFields" in metadata:
        trimmed[REPLICA_OWNERS] = sorted(_owners_of_replicas(metadata))
    version = _number(metadata.get("resourceVersion"))
    return Entry(str(metadata.get("uid", "")), version, Key(namespace, label), msgspec.json.encode(trimmed))


def _owners_of_replicas(metadata: Manifest) -> set[str]:
    """The field managers of `spec.replicas`, including those that wrote it through `/scale`."""
    entries = mappings(metadata.get("managedFields"))
    return {
        str(entry.get("manager"))
        for entry in entries
        if "f:replicas" in mapping(mapping(entry.get("fieldsV1")).get("f:spec"))
    }


def _without_fields(metadata: Manifest) -> Manifest:
    return {name: value for name, value in metadata.items() if name not in ("managedFields", "selfLink")}


def _pod(manifest: Manifest) -> Manifest:
    metadata, status = metadata_of(manifest), mapping(manifest.get("status"))
    names = ("name", "namespace", "uid", "labels", "ownerReferences", "creationTimestamp", "deletionTimestamp")
    node = mapping(manifest.get("spec")).get("nodeName")
    given = mapping(metadata.get("annotations"))
    marks = {name: given[name] for name in (ASSIGNED_ANNOTATION, COST_ANNOTATION) if name in given}
    fields = {name: metadata[name] for name in names if name in metadata}
    return {
        "metadata": {**fields, **({"annotations": marks} if marks else {})},
        **({"spec": {"nodeName": node}} if node else {}),
        "status": {name: status[name] for name in (*_POD_STATUS, *(("podIP",) if marks else ())) if name in status},
    }


def _place(manifest: Manifest) -> Place:
    metadata = metadata_of(manifest)
    return str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def _number(version: object) -> int:
    return int(version) if isinstance(version, str) and version.isdigit() else 0
