"""Parts of the cases of `conformance`: objects, their owners, and calls that have to be refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from baton_operator.kube.kinds import POOLS
from baton_operator.kube.kube_api import KubeApi, KubeError, Resource
from baton_testing.kube.manifests import manifest

Json = dict[str, Any]
Scale = Callable[[Resource, str, str, int], Awaitable[None]]
Case = Callable[[KubeApi, str, Scale], Coroutine[Any, Any, None]]
Error = TypeVar("Error", bound=KubeError)
A, B = "first-manager", "second-manager"


async def refused(kind: type[Error], call: Awaitable[object]) -> Error:
    """The refusal of a call that has to be refused like this."""
    try:
        await call
    except kind as error:
        return error
    raise AssertionError(f"was not refused with {kind.__name__}")


def llm(namespace: str, **fields: object) -> Json:
    return in_space(namespace, "chat", manifest(**fields))


def pool(namespace: str, **spec: object) -> Json:
    body = {
        "apiVersion": POOLS.api_version,
        "kind": POOLS.kind,
        "spec": {"deployment": "chat", "role": "decode", **spec},
    }
    return in_space(namespace, "chat-decode", body)


def workers(namespace: str, **env: str) -> Json:
    """A Deployment without `replicas`."""
    container = {"name": "main", "image": "none/none:1", "env": [{"name": n, "value": v} for n, v in env.items()]}
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"nodeSelector": {"no": "node"}, "containers": [container]},
    }
    spec = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    return in_space(namespace, "crew", {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec})


def with_replicas(body: Json, count: int) -> Json:
    return {**body, "spec": {**body["spec"], "replicas": count}}


def in_space(namespace: str, name: str, body: Json) -> Json:
    return {**body, "metadata": {**body.get("metadata", {}), "name": name, "namespace": namespace}}


def version_of(body: Json) -> str:
    return str(body["metadata"]["resourceVersion"])


def owners_of(body: Json, *path: str) -> set[str]:
    """Managers whose fields include the path."""
    paths = set()
    for entry in body["metadata"]["managedFields"]:
        node = entry["fieldsV1"]
        for step in path:
            node = node.get(f"f:{step}") if isinstance(node, dict) else None
        if node is not None:
            paths.add(entry["manager"])
    return paths
