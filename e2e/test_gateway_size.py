"""Handing the number of gateways over to an autoscaler, on a real API server: who owns a field is its say."""

from __future__ import annotations

import copy
from typing import Any

from baton_control.spec.gateway_fields import GatewaySpec
from baton_operator.kube.labels import FIELD_MANAGER
from baton_operator.objects.cluster import Owner
from baton_operator.objects.desired import standing_objects
from baton_operator.passes.apply import DesiredObject, desired_object
from baton_operator.passes.pool_size import SCALER
from baton_operator.passes.shared_objects import plan_handover
from baton_testing.kube.api_server import Reply
from baton_testing.kube.control_plane import ControlPlane
from baton_testing.kube.manifests import deployment
from baton_testing.kube.world import MASTERS, PLATFORM

Json = dict[str, Any]
FIXED: Json = {"gateway__replicas": 3}
SCALED: Json = {"gateway__autoscaling": {"min": 2, "max": 6}}
PATH = "/apis/apps/v1/namespaces/default/deployments/chat-gateway"
OWNER = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")


def wanted(**fields: Any) -> DesiredObject:
    """The gateway's Deployment, without its owner: the API server's collector would take it away."""
    objects = standing_objects(deployment(**fields), PLATFORM, OWNER, MASTERS)
    gateway = next(
        candidate
        for candidate in objects
        if (candidate["kind"], candidate["metadata"]["name"]) == ("Deployment", "chat-gateway")  # type: ignore[index]
    )
    return desired_object(gateway)


def bare(body: Json) -> Json:
    """Without what an old server does not know."""
    stripped: Json = copy.deepcopy(body)
    stripped["metadata"].pop("ownerReferences", None)
    pod = stripped["spec"].get("template", {}).get("spec", {})
    for container in pod.get("containers", ()):
        container.pop("lifecycle", None)
    for constraint in pod.get("topologySpreadConstraints", ()):
        constraint.pop("matchLabelKeys", None)
    return stripped


def live_gateway(plane: ControlPlane) -> Json:
    """As a deployment of ours would see it."""
    gateway: Any = plane.api.send("GET", PATH).body
    gateway["metadata"]["ownerReferences"] = [{"uid": OWNER.uid, "controller": True}]
    body: Json = gateway
    return body


def send(plane: ControlPlane, body: Json, manager: str) -> Reply:
    return plane.api.send("PATCH", f"{PATH}?fieldManager={manager}&force=true", bare(body), kind="apply-patch+yaml")


def apply(plane: ControlPlane, body: Json) -> int:
    """Apply it; how many gateways are wanted then."""
    reply = send(plane, body, FIELD_MANAGER)
    assert reply.status in (200, 201), reply.message
    return replicas(reply)


def replicas(reply: Reply) -> int:
    scale: Any = reply.body
    return int(scale["spec"]["replicas"])


def hand_over(plane: ControlPlane, scaled: DesiredObject, gateway: GatewaySpec) -> int:
    """As a pass does, and again where a controller was in between; how many gateways are wanted then."""
    for _ in range(50):
        size: Any = plan_handover(scaled, live_gateway(plane), gateway, OWNER)
        reply = send(plane, size, SCALER)
        if reply.status == 200:
            return replicas(reply)
        assert reply.status == 409, reply.message
    raise AssertionError("a controller was in between each time")


def test_the_number_stays_where_it_is_and_then_is_the_autoscalers(plane: ControlPlane) -> None:
    fixed, scaled = wanted(**FIXED), wanted(**SCALED)
    gateway = deployment(**SCALED).spec.gateway
    assert apply(plane, fixed.body) == 3
    assert apply(plane, scaled.body) == 1, "what its only owner leaves out falls back to the default"
    assert apply(plane, fixed.body) == 3

    assert hand_over(plane, scaled, gateway) == 3
    assert apply(plane, scaled.body) == 3
    scale = {"spec": {"replicas": 5}}
    reply = plane.api.send("PATCH", f"{PATH}/scale?fieldManager=hpa", scale, kind="merge-patch+json")
    assert reply.status == 200, reply.message
    edited = wanted(**SCALED, gateway__processes=2)
    assert apply(plane, edited.body) == 5

    live = live_gateway(plane)
    assert plan_handover(edited, live, gateway, OWNER) is None, "as applied, and above the floor"
    again: Any = plan_handover(wanted(**SCALED, gateway__processes=3), live, gateway, OWNER)
    assert (again["spec"], again["metadata"]["uid"]) == ({"replicas": 5}, live["metadata"]["uid"])
    assert apply(plane, fixed.body) == 3, "taken away, the number is the spec's again"
