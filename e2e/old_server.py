"""The operator against an API server of 1.20, the only one that can be built here: run it instead of the package.

That server refuses to apply `preStop.sleep`, which it does not know. On the way out it becomes an exec that sleeps as
long, on the way in it becomes what it was, so that the operator sees what it applied. A Job's `podFailurePolicy`, which
it does not know either, is left out.

Of an applied status it makes null what is left out again with all its fields or entries, or is empty now, and then
refuses the null. So a mark stands there on the way out, and goes on the way in. Nothing else is different.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator

from baton_operator.__main__ import run
from baton_operator.kube.kube_api import KubeApi, Listing, ReadLater, Resource, WatchEvent
from baton_operator.kube.object_fields import mapping
from baton_operator.objects.cluster import Manifest
from baton_operator.settings import parse

KIND = "LLMDeployment"
POOLS = ("prefill", "decode")
NOTHING: Manifest = {"slo": {"ttft": "-"}, "kvTransfer": {"lane": "-"}}
NO_REVISIONS = [{"revision": "-", "workers": 0}]


def outward(value: object) -> object:
    """What that server takes."""
    if isinstance(value, dict):
        if set(value) == {"sleep"} and isinstance(value["sleep"], dict):
            seconds = value["sleep"]["seconds"]
            return {"exec": {"command": ["python", "-c", f"import time; time.sleep({seconds})"]}}
        return {name: outward(each) for name, each in value.items()}
    return [outward(each) for each in value] if isinstance(value, list) else value


def inward(value: object) -> object:
    """What was meant."""
    if isinstance(value, dict):
        command = value["exec"].get("command") if set(value) == {"exec"} and isinstance(value["exec"], dict) else None
        if command and str(command[-1]).startswith("import time; time.sleep("):
            return {"sleep": {"seconds": int(str(command[-1])[24:-1])}}
        return {name: inward(each) for name, each in value.items()}
    return [inward(each) for each in value] if isinstance(value, list) else value


def with_marks(status: Manifest) -> Manifest:
    """With a mark for each part that may come and go again and is not there."""
    pools = {name: {"revisions": NO_REVISIONS, **pool} for name in POOLS if isinstance(pool := status.get(name), dict)}
    return {**NOTHING, **status, **pools}


def without_marks(status: Manifest) -> Manifest:
    """As the operator wrote it."""
    kept = {name: value for name, value in status.items() if value != NOTHING.get(name, status)}
    for name in POOLS:
        pool = kept.get(name)
        if isinstance(pool, dict) and pool.get("revisions") == NO_REVISIONS:
            kept[name] = {field: value for field, value in pool.items() if field != "revisions"}
    return kept


def _sent(manifest: Manifest) -> Manifest:
    if manifest.get("kind") == KIND and "status" in manifest:
        return {**manifest, "status": with_marks(mapping(manifest["status"]))}
    if manifest.get("kind") == "Job":
        return {**manifest, "spec": {n: v for n, v in mapping(manifest["spec"]).items() if n != "podFailurePolicy"}}
    found = outward(manifest) if manifest.get("kind") == "Deployment" else manifest
    assert isinstance(found, dict)
    return found


def _got(manifest: Manifest) -> Manifest:
    if manifest.get("kind") == KIND and "status" in manifest:
        return {**manifest, "status": without_marks(mapping(manifest["status"]))}
    found = inward(manifest) if manifest.get("kind") == "Deployment" else manifest
    assert isinstance(found, dict)
    return found


class OldServer:
    """A KubeApi over another one."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        return _got(await self._api.get(resource, namespace, name))

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        listing = await self._api.list(resource, namespace, selector, fields=fields)
        return Listing(ReadLater(listing.items, _got), listing.resource_version)

    async def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        stream = self._api.watch(resource, namespace, resource_version, selector, timeout_s=timeout_s)
        async for event in stream:
            yield WatchEvent(event.change, _got(event.object))

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
        found = await self._api.apply(
            resource, _sent(manifest), manager=manager, force=force, subresource=subresource, dry_run=dry_run
        )
        return _got(found)

    async def create(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        return _got(await self._api.create(resource, _sent(manifest), manager=manager))

    async def replace(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        return _got(await self._api.replace(resource, _sent(manifest), manager=manager))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        await self._api.delete(resource, namespace, name, uid=uid, resource_version=resource_version)

    async def served(self, group: str, version: str) -> frozenset[str]:
        return await self._api.served(group, version)


if __name__ == "__main__":
    settings = parse(sys.argv[1:])
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(run(settings, adapt=OldServer))
