"""Backup and restore on a real control plane: a namespace is lost with all in it, and comes back with other uids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from baton_control.names import keys_name
from baton_operator.kube.kinds import (
    ACCOUNTS,
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    POLICIES,
    POOLS,
    RECORDS,
    SECRETS,
    SERVICES,
    WORKERS,
)
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_operator.kube.object_fields import is_controlled, is_leaving
from baton_operator.objects.metadata import ADOPT_ANNOTATION
from baton_testing.kube.stage import Stage

Json = dict[str, Any]
KINDS = (ACCOUNTS, POLICIES, SECRETS, SERVICES, CLAIMS, RECORDS, POOLS, WORKERS, JOBS)
IDENTITY = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink")


def is_of_baton(body: Json) -> bool:
    return DEPLOYMENT_LABEL in (body["metadata"].get("labels") or {})


def back_up(stage: Stage, *, owners: bool) -> list[tuple[str, Json]]:
    """Everything as `kubectl get -o yaml` shows it, or with no owners: as Velero keeps it; with the path to send it
    to, the LLMDeployment last."""
    backup = []
    for kind in (*KINDS, DEPLOYMENTS):
        for child in stage.all(kind):
            if kind is not DEPLOYMENTS and not is_of_baton(child):
                continue
            gone = (*IDENTITY, *(() if owners else ("ownerReferences",)))
            metadata = {name: value for name, value in child["metadata"].items() if name not in gone}
            body = {"apiVersion": kind.api_version, "kind": kind.kind, **child, "metadata": metadata}
            body.pop("status", None)
            if kind is SERVICES and body["spec"].get("clusterIP") != "None":
                body["spec"] = {k: v for k, v in body["spec"].items() if k not in ("clusterIP", "clusterIPs")}
            backup.append((stage.path(kind), body))
    return backup


async def lose(stage: Stage) -> None:
    """Delete the namespace with all in it, and make it again."""
    place = f"/api/v1/namespaces/{stage.space}"
    assert stage.api.send("DELETE", place).status == 200
    await stage.until("the namespace is gone", lambda: stage.api.send("GET", place).status == 404)
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": stage.space}}
    assert stage.api.send("POST", "/api/v1/namespaces", body).status == 201


def strangers(stage: Stage) -> list[str]:
    """Objects that are Baton's by their label, and not controlled by the present LLMDeployment."""
    uid = stage.read(DEPLOYMENTS, "chat")["metadata"]["uid"]
    marker = keys_name("chat")
    return [
        f"{kind.kind} {child['metadata']['name']}: {child['metadata'].get('ownerReferences')}"
        for kind in KINDS
        for child in stage.all(kind)
        if is_of_baton(child)
        and not is_controlled(child, uid)
        and not is_leaving(child)
        and (kind is not RECORDS or child["metadata"]["name"] != marker)
    ]


def uids(stage: Stage) -> dict[str, str]:
    return {
        kind.kind + child["metadata"]["name"]: child["metadata"]["uid"] for kind in KINDS for child in stage.all(kind)
    }


@pytest.mark.parametrize("owners", [True, False], ids=["kubectl get -o yaml", "Velero"])
@pytest.mark.parametrize("adopts", ["from the start", "later"])
async def test_a_lost_namespace_is_restored_and_serves_the_same(stage: Stage, owners: bool, adopts: str) -> None:
    async with stage.operator():
        stage.apply()
        await stage.serves()
        before = stage.workers()
    backup = back_up(stage, owners=owners)
    kinds = {body["kind"] for _, body in backup}
    assert {"Secret", "ControllerRevision", "Deployment", "LLMPool", "LLMDeployment"} <= kinds
    await lose(stage)
    async with stage.operator():
        for path, body in backup:
            if body["kind"] == "LLMDeployment" and adopts == "from the start":
                body["metadata"].setdefault("annotations", {})[ADOPT_ANNOTATION] = "true"
            reply = stage.api.send("POST", path, body)
            assert reply.status in (201, 409), (path, reply.message)
        if adopts == "later" and not owners:
            await stage.until("NameTaken", lambda: stage.condition("Degraded")[:2] == ("True", "NameTaken"))
        if adopts == "later":
            stage.patch(DEPLOYMENTS, "chat", "metadata.annotations", {ADOPT_ANNOTATION: "true"})
        await stage.until("all ours", lambda: strangers(stage) == [])
        await stage.serves()
        assert stage.workers() == before, "the same templates: nothing else runs than before"
        await stage.settled()
        settled = uids(stage)
        await asyncio.sleep(4.0)  # a resync
        assert (uids(stage), strangers(stage)) == (settled, [])
        stage.delete(DEPLOYMENTS, "chat")
        await stage.until("all gone", lambda: not [e for kind in KINDS for e in stage.all(kind) if is_of_baton(e)])
