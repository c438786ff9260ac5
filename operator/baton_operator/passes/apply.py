"""Makes live objects as wanted, with as few requests as possible: none for an object that already is.

An object that is not in the cache is created. If the name is taken by another owner, the server refuses, and the other
object is neither adopted nor touched. An object in the cache is applied under its known uid, so that a successor of the
same name is never changed. The answer to a write goes into the cache at once.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.errors import OperatorError
from baton_control.hashes import content_hash
from baton_control.spec.api import KIND
from baton_operator.kube.cache import CREATED, Cache
from baton_operator.kube.field_owners import as_applied, is_created_by
from baton_operator.kube.kinds import RECORDS, resource_of
from baton_operator.kube.kube_api import AlreadyExists, Conflict, KubeApi, NotFound, Resource
from baton_operator.kube.labels import DEPLOYMENT_LABEL, FIELD_MANAGER
from baton_operator.kube.object_fields import (
    Manifest,
    annotations_of,
    is_controlled,
    is_leaving,
    labels_of,
    mapping,
    mappings,
    metadata_of,
    uid_of,
)
from baton_operator.objects.cluster import Owner
from baton_operator.objects.link_keys import key_marker
from baton_operator.objects.metadata import belongs
from baton_operator.passes.drift import APPLIED, has_drifted

log = logging.getLogger(__name__)
_PROBE = "baton-probe"
MAX_OURS = 1 << 17
_NO_NAME = "no_body"
"""A value that the label never has, because no name has an underscore: any owner of the label conflicts with it."""


class Applied(enum.StrEnum):
    UNCHANGED = "unchanged"
    WRITTEN = "written"
    LEAVING = "leaving"
    """An older object of that name is still being deleted; to be retried when it is gone."""


@dataclass(frozen=True, slots=True)
class DesiredObject:
    """A wanted object, ready to be compared and applied."""

    resource: Resource
    namespace: str
    name: str
    digest: str
    """Hash of the manifest."""
    body: Manifest
    """The manifest with its hash in the annotations."""


def desired_object(manifest: Manifest) -> DesiredObject:
    digest = content_hash(manifest)
    body = with_metadata(manifest, annotations={APPLIED: digest})
    return DesiredObject(resource_of(manifest), *place_of(manifest), digest, body)


class NameTaken(OperatorError):
    """An object of that name exists and has another owner."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} {name} exists and does not belong to this LLMDeployment: it is left alone; the annotation"
            ' baton.dev/adopt: "true" takes over objects without a controller'
        )


class Applier:
    """Applies for all deployments; `caches` by resource. Raises KubeError and NameTaken."""

    def __init__(self, api: KubeApi, caches: Mapping[Resource, Cache]) -> None:
        self._api, self._caches = api, caches
        self._writes: dict[str, int] = {}
        """Writes to the objects of each owner, by its uid, since the process began."""
        self._restored: dict[str, list[str]] = {}
        """By owner's uid: what was put back since it was taken from here, as `Service chat-gateway`."""
        self._ours: dict[tuple[Resource, str, str], str] = {}
        """Objects that were as wanted at the last look, with their owner's uid."""
        self._foreign: set[tuple[Resource, str, str]] = set()
        """Names that another owner had. They are read before a create, because a refused create may use up a quota."""
        self._settled: dict[tuple[Resource, str, str], tuple[str, str]] = {}
        """Objects that the server stores differently from what was applied (a mutating webhook, an unknown field), with
        the hash of both: applying again would change nothing."""

    async def ensure(self, desired: DesiredObject, owner: Owner, *, at_version: bool = False) -> Applied:
        """Make the live object as wanted. `at_version`: only if it has not changed since it was cached."""
        cache = self._caches[desired.resource]
        place = (desired.resource, desired.namespace, desired.name)
        if cache.mark_of(desired.namespace, desired.name) == desired.digest:
            return Applied.UNCHANGED
        is_new = await self._create(desired, owner)
        live = None if is_new else await self.find(desired, owner)
        was_ours = self._ours.get(place) == owner.uid
        if len(self._ours) > MAX_OURS:
            self._ours.clear()
        self._ours[place] = owner.uid
        if is_new:
            if was_ours:
                self._restored.setdefault(owner.uid, []).append(f"{desired.resource.kind} {desired.name}")
            return Applied.WRITTEN
        if live is None or is_leaving(live):
            return Applied.LEAVING
        if annotations_of(live).get(APPLIED) == desired.digest and not self._differs(desired, live):
            cache.mark(desired.namespace, desired.name, desired.digest)
            return Applied.UNCHANGED
        is_foreign_edit = annotations_of(live).get(APPLIED) == desired.digest
        if CREATED in metadata_of(live) or is_created_by(live, FIELD_MANAGER):
            live = await self._own_fields(desired, live, at_version)
        conditions = {"uid": uid_of(live)}
        if at_version:
            conditions["resourceVersion"] = _version_of(live)
        applied = await self._apply(desired, with_metadata(desired.body, None, **conditions), force=True)
        if is_foreign_edit and was_ours:
            self._restored.setdefault(owner.uid, []).append(f"{desired.resource.kind} {desired.name}")
        return applied

    async def find(self, desired: DesiredObject, owner: Owner) -> Manifest | None:
        """The live object of that name; None: there is none. Raises NameTaken if it has another owner."""
        cache = self._caches[desired.resource]
        live = cache.get(desired.namespace, desired.name)
        if live is None:
            try:
                live = await self._api.get(desired.resource, desired.namespace, desired.name)
            except NotFound:
                return None
            if is_controlled(live, owner.uid):
                cache.store(live)
        if not is_controlled(live, owner.uid) and not (
            belongs(live, owner) and _labels_of(live) == _labels_of(desired.body)
        ):
            if len(self._foreign) > MAX_OURS:
                self._foreign.clear()
            self._foreign.add((desired.resource, desired.namespace, desired.name))
            raise NameTaken(desired.resource.kind, desired.name)
        return live

    async def apply(self, wanted: Manifest, *, manager: str, force: bool, subresource: str | None = None) -> None:
        """Apply a manifest and put the answer into the cache. After a Conflict the object is read into the cache
        anew."""
        resource = resource_of(wanted)
        try:
            stored = await self._api.apply(resource, wanted, manager=manager, force=force, subresource=subresource)
        except (Conflict, NotFound):
            await self.refresh(resource, wanted)
            raise
        self._caches[resource].store(stored)
        self._count(wanted)

    def count_write(self, owner: Owner) -> None:
        """Count a write to an object that has no reference to its owner."""
        self._writes[owner.uid] = self._writes.get(owner.uid, 0) + 1

    async def ensure_secret(self, wanted: Manifest, owner: Owner, is_known: bool) -> None:
        """Apply a Secret, which the operator may not read, and its marker. `is_known`: it was applied before. Otherwise
        a dry run that could only conflict with Baton's own label shows whether a Secret of that name has another
        owner."""
        resource = resource_of(wanted)
        if not is_known:
            try:
                stored = await self._probe(wanted, _NO_NAME)
                if len(labels_of(stored)) > 1 or mapping(stored.get("data")):
                    raise NameTaken(resource.kind, place_of(wanted)[1])
            except Conflict as error:
                if FIELD_MANAGER not in error.managers and not (owner.adopts and await self._is_orphan(wanted, owner)):
                    raise NameTaken(resource.kind, place_of(wanted)[1]) from error
        stored = await self._api.apply(resource, wanted, manager=FIELD_MANAGER, force=True)
        await self.apply(key_marker(wanted, uid_of(stored)), manager=FIELD_MANAGER, force=True)

    async def _is_orphan(self, secret: Manifest, owner: Owner) -> bool:
        """True if the Secret of that name has this deployment's label, set by another manager (a restored backup), and
        no controller."""
        try:
            return belongs(await self._probe(secret, str(_labels_of(secret))), owner)
        except Conflict:
            return False

    async def _probe(self, secret: Manifest, label: str) -> Manifest:
        """The Secret of that name as it would be with that label; nothing is changed. Raises Conflict if another
        manager set another label."""
        resource = resource_of(secret)
        namespace, name = place_of(secret)
        probe: Manifest = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"name": name, "namespace": namespace, "labels": {DEPLOYMENT_LABEL: label}},
        }
        return await self._api.apply(resource, probe, manager=_PROBE, force=False, dry_run=True)

    async def delete(self, resource: Resource, live: Manifest) -> None:
        """Delete exactly this version of an object. Raises Conflict if it has changed since."""
        namespace, name = place_of(live)
        self._ours.pop((resource, namespace, name), None)
        try:
            await self._api.delete(resource, namespace, name, uid=uid_of(live), resource_version=_version_of(live))
        except NotFound:
            self._caches[resource].remove(namespace, name)
        except Conflict:
            await self.refresh(resource, live)
            raise

    async def refresh(self, resource: Resource, like: Manifest) -> None:
        """Read an object anew into the cache, because a watch may be late or have lost an event."""
        namespace, name = place_of(like)
        try:
            self._caches[resource].store(await self._api.get(resource, namespace, name))
        except NotFound:
            self._caches[resource].remove(namespace, name)

    async def _create(self, desired: DesiredObject, owner: Owner) -> bool:
        """Create an object that is absent; returns whether it was absent. Raises NameTaken if another owner had the
        name before. A record is applied instead: its data never change, and a server orders the data of a create and of
        an apply differently."""
        place = (desired.resource, desired.namespace, desired.name)
        if self._caches[desired.resource].get(desired.namespace, desired.name) is not None:
            return False
        is_applied = desired.resource == RECORDS
        if (is_applied or place in self._foreign) and await self.find(desired, owner) is not None:
            return False
        self._foreign.discard(place)
        if is_applied:
            await self._apply(desired, desired.body, force=False)
            return True
        try:
            stored = await self._api.create(desired.resource, desired.body, manager=FIELD_MANAGER)
        except AlreadyExists:
            return False
        self._take_answer(desired, stored)
        return True

    async def _own_fields(self, desired: DesiredObject, seen: Manifest, at_version: bool) -> Manifest:
        """Turn the fields of an object's create into fields of an apply; returns the object. Raises Conflict for a
        successor of the cached object, and with `at_version` for a later version too."""
        try:
            live = await self._api.get(desired.resource, desired.namespace, desired.name)
            if uid_of(live) != uid_of(seen) or (at_version and _version_of(live) != _version_of(seen)):
                raise Conflict(f"{desired.resource.kind} {desired.name} has changed")
            entries = as_applied(metadata_of(live).get("managedFields"), FIELD_MANAGER)
            stored = await self._api.set_managed_fields(
                *(desired.resource, desired.namespace, desired.name, entries),
                uid=uid_of(live),
                version=_version_of(live),
            )
        except (Conflict, NotFound) as error:
            await self.refresh(desired.resource, desired.body)
            raise Conflict(f"{desired.resource.kind} {desired.name}: {error}") from error
        self._caches[desired.resource].store(stored)
        return stored

    async def _apply(self, desired: DesiredObject, body: Manifest, force: bool) -> Applied:
        try:
            stored = await self._api.apply(desired.resource, body, manager=FIELD_MANAGER, force=force)
        except Conflict:
            await self.refresh(desired.resource, desired.body)
            raise
        self._take_answer(desired, stored)
        return Applied.WRITTEN

    async def replace(self, live: Manifest, desired: DesiredObject, owner: Owner) -> Applied:
        """Delete an object that cannot be changed, and create it anew."""
        await self.delete(desired.resource, live)
        self._caches[desired.resource].remove(*place_of(live))
        return await self.ensure(desired, owner)

    def writes_to(self, uid: str) -> int:
        """Writes to the objects of an owner since the process began."""
        return self._writes.get(uid, 0)

    def take_restored(self, uid: str) -> tuple[str, ...]:
        """The objects of an owner that were put back since the last call, as `Service chat-gateway`."""
        return tuple(self._restored.pop(uid, ()))

    def forget(self, uid: str) -> None:
        """Drop what is known of an owner that is gone."""
        self._writes.pop(uid, None)
        self._restored.pop(uid, None)

    def _take_answer(self, desired: DesiredObject, stored: Manifest) -> None:
        """Take over the answer to a write."""
        self._caches[desired.resource].store(stored)
        self._count(desired.body)
        place = (desired.resource, desired.namespace, desired.name)
        if has_drifted(desired.body, stored):
            log.info("%s %s/%s is not stored as it was applied", desired.resource.kind, desired.namespace, desired.name)
            if len(self._settled) > MAX_OURS:
                self._settled.clear()
            self._settled[place] = (desired.digest, _essence(stored))
        else:
            self._settled.pop(place, None)

    def _count(self, wanted: Manifest) -> None:
        for reference in mappings(metadata_of(wanted).get("ownerReferences")):
            if reference.get("kind") == KIND:
                uid = str(reference.get("uid"))
                self._writes[uid] = self._writes.get(uid, 0) + 1

    def _differs(self, desired: DesiredObject, live: Manifest) -> bool:
        if not has_drifted(desired.body, live):
            return False
        return self._settled.get((desired.resource, desired.namespace, desired.name)) != (
            desired.digest,
            _essence(live),
        )


def _version_of(live: Manifest) -> str:
    return str(metadata_of(live).get("resourceVersion"))


def _labels_of(manifest: Manifest) -> object:
    return labels_of(manifest).get(DEPLOYMENT_LABEL)


def _essence(live: Manifest) -> str:
    """Hash of everything in an object that others could change: all but its status and bookkeeping."""
    metadata = metadata_of(live)
    fields = {name: metadata.get(name) for name in ("uid", "labels", "annotations", "ownerReferences")}
    annotations = {
        name: value for name, value in mapping(fields["annotations"]).items() if name.startswith("baton.dev/")
    }
    body = {name: value for name, value in live.items() if name not in ("status", "metadata")}
    return content_hash({"metadata": fields | {"annotations": annotations}, "body": body})


def place_of(manifest: Manifest) -> tuple[str, str]:
    metadata = metadata_of(manifest)
    return str(metadata.get("namespace")), str(metadata.get("name"))


def with_metadata(manifest: Manifest, annotations: Mapping[str, str] | None = None, **fields: str) -> Manifest:
    """A copy with more annotations and fields in its metadata."""
    metadata = {**metadata_of(manifest), **fields}
    if annotations:
        metadata["annotations"] = {**mapping(metadata.get("annotations")), **annotations}
    return {**manifest, "metadata": metadata}
