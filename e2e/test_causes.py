"""Causes on a real API server: its own refusals, Events and admission; what schedulers and kubelets say is played."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from baton_operator.kube.kinds import DEPLOYMENTS, EVENTS, PODS, POLICIES
from baton_operator.kube.kube_api import Resource
from baton_testing.kube.causes import CAUSES, PodsAfflicted
from baton_testing.kube.control_plane import ControlPlane
from baton_testing.kube.stage import LONG_S, Stage

AT_ONCE = 6
NOWHERE = "https://127.0.0.1:1/"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe"},
    "spec": {
        "automountServiceAccountToken": False,
        "containers": [{"name": "a", "image": "a", "resources": {"limits": {"memory": "64Mi"}}}],
    },
}
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "probe"},
    "spec": {"podSelector": {}},
}


@dataclass(frozen=True, slots=True)
class OnServer:
    name: str
    reason: str
    plant: Callable[[Stage], Awaitable[None]]
    says: str = ""


def afflict(cause: PodsAfflicted) -> Callable[[Stage], Awaitable[None]]:
    async def plant(stage: Stage) -> None:
        stage.afflicts = cause.of
        stage.apply(**cause.fields)

    return plant


def plant_object(path: str, body: dict[str, Any], why: str) -> Callable[[Stage], Awaitable[None]]:
    """A step that creates an object in the namespace which refuses Pods with `why`."""

    async def plant(stage: Stage) -> None:
        reply = stage.api.send("POST", path.format(space=stage.space), body)
        assert reply.status == 201, reply.message
        if body["kind"] == "ResourceQuota":  # its controller does not run
            status = {"status": {"hard": body["spec"]["hard"], "used": {"pods": "0"}}}
            place = f"{path.format(space=stage.space)}/{body['metadata']['name']}/status"
            assert stage.api.send("PATCH", place, status, kind="merge-patch+json").status == 200
        await stage.refuses(PODS, POD, why)
        stage.apply()

    return plant


def webhook(kind: Resource, probe: dict[str, Any]) -> Callable[[Stage], Awaitable[None]]:
    """A validating webhook for one kind that does not answer; `probe` is an object of it."""

    async def plant(stage: Stage) -> None:
        name = f"{stage.space}.example.com"
        rule = {"apiGroups": [kind.group], "apiVersions": ["v1"], "resources": [kind.plural], "operations": ["*"]}
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [
                {
                    "name": name,
                    "rules": [rule],
                    "clientConfig": {"url": NOWHERE},
                    "namespaceSelector": {"matchLabels": {"stage": stage.space}},
                    "sideEffects": "None",
                    "failurePolicy": "Fail",
                    "timeoutSeconds": 2,
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }
        path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
        reply = stage.api.send("POST", path, body)
        assert reply.status == 201, reply.message
        await stage.refuses(kind, probe, "failed calling webhook")
        stage.apply()

    return plant


async def unsupported(stage: Stage) -> None:
    stage.apply(model__source="file://relative")


async def not_allowed(stage: Stage) -> None:
    stage.apply(decode__priorityClassName="system-node-critical")


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "none"},
    "spec": {"hard": {"pods": "0"}},
}
LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "max": {"memory": "1Mi"}}]},
}
SPACED = "/api/v1/namespaces/{space}"
ON_SERVER = (
    *(OnServer(c.name, c.reason, afflict(c.plant), c.says) for c in CAUSES if isinstance(c.plant, PodsAfflicted)),
    OnServer("quota", "QuotaExceeded", plant_object(f"{SPACED}/resourcequotas", QUOTA, "exceeded quota"), "none"),
    OnServer("LimitRange", "OutsideLimitRange", plant_object(f"{SPACED}/limitranges", LIMITS, "maximum memory")),
    OnServer("webhook for Pods", "WebhookDown", webhook(PODS, POD)),
    OnServer("webhook for our objects", "WebhookDown", webhook(POLICIES, POLICY)),
    OnServer("unsupported", "Unsupported", unsupported, "spec.model.source"),
    OnServer("not allowed", "NotAllowed", not_allowed, "priorityClassName"),
)


async def find_fault(plane: ControlPlane, cause: OnServer) -> str:
    """Plant the cause and return what is wrong with the status; empty: nothing."""
    stage = Stage(plane, f"c{secrets.token_hex(4)}")
    body = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": stage.space, "labels": {"stage": stage.space}},
    }
    assert plane.api.send("POST", "/api/v1/namespaces", body).status == 201
    clock = asyncio.get_running_loop().time
    try:
        async with stage.operator(by_kopf=False):
            began, status = clock(), {}
            await cause.plant(stage)
            while clock() - began < LONG_S:  # how soon it is reported is tested on virtual time
                status = stage.read(DEPLOYMENTS, "chat").get("status", {})
                if status.get("summary", "").split(" ")[0] == cause.reason:
                    break
                await asyncio.sleep(0.3)
            took = clock() - began
            ready: dict[str, str] = next(
                (condition for condition in status.get("conditions", ()) if condition["type"] == "Ready"), {}
            )
            print(f"{cause.name}: {status.get('summary')} after {took:.1f} s")
            is_right = status.get("summary", "").split(" ")[0] == cause.reason
            if not is_right or ready.get("status") != "False" or cause.says not in ready.get("message", ""):
                return f"{cause.name}: {status.get('summary')}: {ready}"
            ours = [event for event in stage.all(EVENTS) if event["source"].get("component") == "baton-operator"]
            return "" if all(event["count"] >= 1 for event in ours) else f"{cause.name}: {ours}"
    finally:
        plane.api.send("DELETE", f"/api/v1/namespaces/{stage.space}")


async def test_the_top_line_names_the_cause_on_a_real_api_server(
    plane: ControlPlane,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    wrong: list[str] = []
    for start in range(0, len(ON_SERVER), AT_ONCE):
        batch = ON_SERVER[start : start + AT_ONCE]
        wrong += await asyncio.gather(*(find_fault(plane, cause) for cause in batch))
    assert [fault for fault in wrong if fault] == []
