"""A client of the API server in memory: the operator's `KubeApi`, or anybody else's, with rights and watch streams."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence

from baton_operator.kube.kinds import SECRETS
from baton_operator.kube.kube_api import Change, Expired, Forbidden, Listing, Resource, WatchEvent
from baton_operator.kube.object_fields import Manifest
from baton_testing.kube.fields import copied
from baton_testing.kube.store import Json, Store

BOOKMARK_S = 60.0
UNREADABLE = frozenset({SECRETS})
"""Kinds that the operator has no right to read."""


class MemoryKube:
    """`KubeApi` over a store. Every call lets other tasks run first, as a network does."""

    def __init__(self, store: Store, unreadable: frozenset[Resource] = UNREADABLE) -> None:
        self._store, self._unreadable = store, unreadable
        self.calls: Counter[tuple[str, str]] = Counter()

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        await self._call("get", resource)
        self._may_read(resource)
        return self._store.read(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        await self._call("list", resource)
        self._may_read(resource)
        listed = listing(self._store, resource, namespace, selector)
        return Listing(tuple(item for item in listed.items if has_fields(item, fields)), listed.resource_version)

    async def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        await self._call("watch", resource)
        self._may_read(resource)
        clock = asyncio.get_running_loop().time
        until, version, news = clock() + timeout_s, int(resource_version), asyncio.Event()
        self._store.changes(resource, version)
        self._store.listen(news)
        try:
            while clock() < until:
                try:
                    logged = self._store.changes(resource, version)
                except Expired:
                    return
                for entry in logged:
                    version = entry.version
                    event = seen(entry.change, entry.before, entry.after, namespace, selector)
                    if event is not None:
                        yield event
                if logged:
                    continue
                news.clear()
                try:  # wait_for, before Python 3.12, swallows a cancellation that comes together with news
                    async with asyncio.timeout(min(BOOKMARK_S, until - clock())):
                        await news.wait()
                except TimeoutError:
                    if news.is_set():  # they came in the same moment: a bookmark skips nothing
                        continue
                    version = max(version, self._store.version)
                    mark: Json = {"apiVersion": resource.api_version, "kind": resource.kind}
                    mark["metadata"] = {"resourceVersion": str(version)}
                    yield WatchEvent(Change.BOOKMARK, mark)
        finally:
            self._store.unlisten(news)

    async def apply(
        self,
        resource: Resource,
        manifest: Manifest,
        *,
        manager: str,
        force: bool,
        subresource: str | None = None,
        dry_run: bool = False,
    ) -> Manifest:
        await self._call("dry run" if dry_run else "apply", resource)
        with self._store.rehearsal(dry_run):
            return self._store.apply(resource, manifest, manager, force, subresource or "")

    async def create(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        await self._call("create", resource)
        return self._store.create(resource, manifest, manager)

    async def replace(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        await self._call("update", resource)
        return self._store.replace(resource, manifest, manager)

    async def set_managed_fields(
        self, resource: Resource, namespace: str, name: str, entries: Sequence[Manifest], *, uid: str, version: str
    ) -> Manifest:
        await self._call("own", resource)
        return self._store.set_managed_fields(resource, namespace, name, entries, uid, version)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        await self._call("delete", resource)
        self._store.delete(resource, namespace, name, uid, resource_version)

    async def served(self, group: str, version: str) -> frozenset[str]:
        await asyncio.sleep(0)
        kinds = self._store.kinds.served
        return frozenset(kind.plural for kind in kinds if (kind.group, kind.version) == (group, version))

    async def _call(self, verb: str, resource: Resource) -> None:
        self.calls[verb, resource.plural] += 1
        await asyncio.sleep(0)

    def _may_read(self, resource: Resource) -> None:
        if resource in self._unreadable:
            raise Forbidden(f"{resource.plural} is forbidden: cannot read")


def listing(store: Store, resource: Resource, namespace: str | None, selector: str) -> Listing:
    """The present list."""
    items = []
    for body in store.all(resource, namespace):
        if matches(body, selector):
            metadata = body["metadata"]
            items.append(store.shown(resource, metadata["namespace"], metadata["name"]))
    return Listing(tuple(items), str(store.version))


def matches(body: Json, selector: str) -> bool:
    """True if labels fit a selector of the forms `key` and `key=value`, joined by commas."""
    labels = body["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def has_fields(body: Manifest, selector: str) -> bool:
    """True if an object fits a field selector of the form `a.b=value`, joined by commas."""
    for part in filter(None, selector.split(",")):
        path, _, wanted = part.partition("=")
        value: object = body
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value != wanted:
            return False
    return True


def seen(change: Change, before: Json | None, after: Json, namespace: str | None, selector: str) -> WatchEvent | None:
    """The event of a change in a watch with this scope: an object that begins or ceases to match is ADDED or
    DELETED."""
    if namespace not in (None, after["metadata"]["namespace"]):
        return None
    was = before is not None and matches(before, selector)
    now = change is not Change.DELETED and matches(after, selector)
    if not was and not now:
        return None
    kind = Change.DELETED if not now else Change.ADDED if not was else Change.MODIFIED
    return WatchEvent(kind, copied(after))
