"""The operator against an API server of 1.20, the only one that can be built here: run it instead of the package.

That server refuses to apply `preStop.sleep`, which it does not know. On the way out it becomes an exec that sleeps as
long, on the way in it becomes what it was, so that the operator sees what it applied. The `matchLabelKeys` of a spread
become expressions that every Pod of the role meets. A Job's `podFailurePolicy`, which
it does not know either, is left out.

Budgets of policy/v1 are policy/v1beta1 there. What they say of Pods that are not ready is left out, and put back.
Autoscalers of autoscaling/v2 are autoscaling/v2beta2 there, with the same fields. The families of a Service's addresses
are left out, and put back.

Of an applied status it makes null what its owner leaves out again with all its fields or entries, and then refuses the
null. Such a part is taken out first, by a merge patch, as later servers do by themselves. Nothing else is different.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import aiohttp
import msgspec

from baton_operator.__main__ import run
from baton_operator.kube.http_client import HttpKubeApi, path_of
from baton_operator.kube.kinds import AUTOSCALERS, BUDGETS, DEPLOYMENTS, SERVICES
from baton_operator.kube.kube_api import Invalid, KubeApi, Listing, ReadLater, Resource, WatchEvent
from baton_operator.kube.object_fields import Manifest, mapping, mappings
from baton_operator.kube.server_answers import error_of
from baton_operator.settings import parse

OLD_BUDGETS = replace(BUDGETS, version="v1beta1")
OLD_AUTOSCALERS = replace(AUTOSCALERS, version="v2beta2")
MATCHED = "matchLabelKeys"
_OLD = {BUDGETS: OLD_BUDGETS, AUTOSCALERS: OLD_AUTOSCALERS}


def outward(value: object) -> object:
    """The value in the form that the old server takes."""
    if isinstance(value, dict):
        if set(value) == {"sleep"} and isinstance(value["sleep"], dict):
            seconds = value["sleep"]["seconds"]
            return {"exec": {"command": ["python", "-c", f"import time; time.sleep({seconds})"]}}
        if MATCHED in value:
            matched = value[MATCHED]
            assert isinstance(matched, list)
            keys = [{"key": key, "operator": "Exists"} for key in matched]
            selector = mapping(value["labelSelector"])
            expressions = [*mappings(selector.get("matchExpressions")), *keys]
            rest = {name: field for name, field in value.items() if name != MATCHED}
            return {**rest, "labelSelector": {**selector, "matchExpressions": expressions}}
        return {name: outward(field) for name, field in value.items()}
    return [outward(item) for item in value] if isinstance(value, list) else value


def inward(value: object) -> object:
    """The value as it was before `outward`."""
    if isinstance(value, dict):
        command = value["exec"].get("command") if set(value) == {"exec"} and isinstance(value["exec"], dict) else None
        if command and str(command[-1]).startswith("import time; time.sleep("):
            return {"sleep": {"seconds": int(str(command[-1])[24:-1])}}
        if "whenUnsatisfiable" in value:
            return _with_matched(value)
        return {name: inward(field) for name, field in value.items()}
    return [inward(item) for item in value] if isinstance(value, list) else value


def _with_matched(constraint: Manifest) -> Manifest:
    """A spread with its `matchLabelKeys`."""
    selector = mapping(constraint["labelSelector"])
    expressions = mappings(selector.get("matchExpressions"))
    keys = [str(expression["key"]) for expression in expressions if expression["operator"] == "Exists"]
    others = [expression for expression in expressions if expression["operator"] != "Exists"]
    rest = {name: field for name, field in selector.items() if name != "matchExpressions"}
    selector = {**rest, **({"matchExpressions": others} if others else {})}
    return {**constraint, "labelSelector": selector, MATCHED: keys}


def gone(stored: Manifest, applied: Manifest) -> Manifest:
    """The merge patch that takes out of a stored status what is in no applied one, or is empty there."""
    patch: Manifest = {}
    for name, value in stored.items():
        wanted = applied.get(name)
        if wanted in (None, {}, []):
            patch[name] = None
        elif isinstance(value, dict) and isinstance(wanted, dict) and (inner := gone(value, wanted)):
            patch[name] = inner
    return patch


def there(resource: Resource) -> Resource:
    """Where that server has a kind."""
    return _OLD.get(resource, resource)


def _sent(manifest: Manifest) -> Manifest:
    if manifest.get("kind") == BUDGETS.kind:
        spec = {n: v for n, v in mapping(manifest.get("spec")).items() if n != "unhealthyPodEvictionPolicy"}
        return {**manifest, "apiVersion": OLD_BUDGETS.api_version, **({"spec": spec} if spec else {})}
    if manifest.get("kind") == AUTOSCALERS.kind:
        return {**manifest, "apiVersion": OLD_AUTOSCALERS.api_version}
    if manifest.get("kind") == SERVICES.kind:
        return {**manifest, "spec": {n: v for n, v in mapping(manifest["spec"]).items() if n != "ipFamilyPolicy"}}
    if manifest.get("kind") == "Job":
        return {**manifest, "spec": {n: v for n, v in mapping(manifest["spec"]).items() if n != "podFailurePolicy"}}
    converted = outward(manifest) if manifest.get("kind") == "Deployment" else manifest
    assert isinstance(converted, dict)
    return converted


def _got(manifest: Manifest) -> Manifest:
    if manifest.get("apiVersion") == OLD_BUDGETS.api_version:
        spec = {**mapping(manifest.get("spec")), "unhealthyPodEvictionPolicy": "AlwaysAllow"}
        return {**manifest, "apiVersion": BUDGETS.api_version, "spec": spec}
    if manifest.get("apiVersion") == OLD_AUTOSCALERS.api_version:
        return {**manifest, "apiVersion": AUTOSCALERS.api_version}
    if manifest.get("kind") == SERVICES.kind:
        return {**manifest, "spec": {**mapping(manifest.get("spec")), "ipFamilyPolicy": "PreferDualStack"}}
    converted = inward(manifest) if manifest.get("kind") == "Deployment" else manifest
    assert isinstance(converted, dict)
    return converted


class OldServer:
    """A KubeApi over another one."""

    def __init__(self, api: KubeApi) -> None:
        assert isinstance(api, HttpKubeApi)
        self._api = api

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        return _got(await self._api.get(there(resource), namespace, name))

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        listing = await self._api.list(there(resource), namespace, selector, fields=fields)
        return Listing(ReadLater(listing.items, _got), listing.resource_version)

    async def watch(
        self, resource: Resource, namespace: str | None, resource_version: str, selector: str = "", *, timeout_s: float
    ) -> AsyncIterator[WatchEvent]:
        stream = self._api.watch(there(resource), namespace, resource_version, selector, timeout_s=timeout_s)
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
        is_status = resource == DEPLOYMENTS and subresource == "status"
        for is_second in (False, True):
            try:
                stored = await self._api.apply(
                    *(there(resource), _sent(manifest)),
                    manager=manager,
                    force=force,
                    subresource=subresource,
                    dry_run=dry_run,
                )
                break
            except Invalid:
                if is_second or not is_status:
                    raise
                await self._take_out(manifest)
        return _got(stored)

    async def create(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        return _got(await self._api.create(there(resource), _sent(manifest), manager=manager))

    async def replace(self, resource: Resource, manifest: Manifest, *, manager: str) -> Manifest:
        return _got(await self._api.replace(there(resource), _sent(manifest), manager=manager))

    async def set_managed_fields(
        self, resource: Resource, namespace: str, name: str, entries: Sequence[Manifest], *, uid: str, version: str
    ) -> Manifest:
        place = (there(resource), namespace, name)
        return _got(await self._api.set_managed_fields(*place, entries, uid=uid, version=version))

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str | None = None
    ) -> None:
        await self._api.delete(there(resource), namespace, name, uid=uid, resource_version=resource_version)

    async def _take_out(self, applied: Manifest) -> None:
        """Take out of the stored status what `applied` is without. Raises KubeError."""
        metadata = mapping(applied["metadata"])
        namespace, name = str(metadata["namespace"]), str(metadata["name"])
        stored = mapping((await self._api.get(DEPLOYMENTS, namespace, name)).get("status"))
        path = f"{self._api.server}{path_of(DEPLOYMENTS, namespace, name)}/status"
        data = msgspec.json.encode({"status": gone(stored, mapping(applied["status"]))})
        headers, timeout = {"Content-Type": "application/merge-patch+json"}, aiohttp.ClientTimeout(total=30.0)
        async with (
            self._api.session(limit=1) as session,
            session.patch(path, data=data, headers=headers, timeout=timeout) as answer,
        ):
            if answer.status != 200:
                raise error_of(answer.status, await answer.read(), answer.headers)

    async def served(self, group: str, version: str) -> frozenset[str]:
        old = {(new.group, new.version): old_resource.version for new, old_resource in _OLD.items()}
        return await self._api.served(group, old.get((group, version), version))


if __name__ == "__main__":
    settings = parse(sys.argv[1:])
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(run(settings, adapt=OldServer))
