"""An autoscaler sizes the gateway: the number is handed over as it is, and the floor is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from baton_control.errors import ManifestError
from baton_operator.kube.kinds import AUTOSCALERS, BUDGETS, DEPLOYMENTS, OPTIONAL, POOLS, WORKERS
from baton_operator.kube.kube_api import Change, Resource
from baton_operator.objects.cluster import Owner
from baton_operator.passes.drift import APPLIED
from baton_operator.passes.rendering import Inputs, render
from baton_operator.passes.shared_objects import plan_handover
from baton_testing.kube.clock import stamp
from baton_testing.kube.manifests import deployment
from baton_testing.kube.store import Json
from baton_testing.kube.world import MASTERS, NAME, PLATFORM, SPACE, Promise, World, deployment_body
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import POOL_ROLES

GATEWAY = f"{NAME}-gateway"
SCALED = {"min": 2, "max": 6}


def played(script: Callable[[World, list[int]], Awaitable[None]], **fields: object) -> list[int]:
    """Numbers of gateways wanted one after the other, while a script runs in a world whose deployment serves."""
    sizes: list[int] = []

    def saw(resource: Resource, change: Change, before: Json | None, after: Json) -> None:
        if resource == WORKERS and after["metadata"]["name"] == GATEWAY:
            size = int(after["spec"]["replicas"])
            if not sizes or sizes[-1] != size:
                sizes.append(size)

    async def main() -> None:
        world = World(promise=Promise(floor=0, most=64))
        world.store.on_commit.append(saw)
        world.start()
        world.user_applies(**fields)
        await asyncio.sleep(60)
        await script(world, sizes)
        await world.end()

    run_virtual(main())
    return sizes


def summary(world: World) -> tuple[str, str]:
    live = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]
    return str(live["summary"]), " ".join(condition["message"] for condition in live["conditions"])


def test_the_number_is_handed_over_as_it_is_and_then_left_to_the_autoscaler() -> None:
    async def script(world: World, sizes: list[int]) -> None:
        world.user_applies(gateway={"autoscaling": SCALED})
        await asyncio.sleep(30)
        world.user_scales(WORKERS, GATEWAY, 5, "kube-controller-manager")
        await asyncio.sleep(700)
        assert sizes[-1] == 5
        world.user_applies(gateway={"autoscaling": SCALED, "processes": 2})
        await asyncio.sleep(60)
        assert "--processes=2" in str(world.store.read(WORKERS, SPACE, GATEWAY)["spec"]["template"])
        world.user_scales(WORKERS, GATEWAY, 4, "kube-controller-manager")
        await asyncio.sleep(60)

    assert played(script, gateway={"replicas": 3}) == [3, 5, 4]


def test_fewer_than_the_floor_are_never_left() -> None:
    """A new Deployment begins with one, and an autoscaler stands still at zero."""

    async def script(world: World, sizes: list[int]) -> None:
        assert sizes == [1, 2]
        world.user_scales(WORKERS, GATEWAY, 0)
        await asyncio.sleep(5)

    assert played(script, gateway={"autoscaling": SCALED}) == [1, 2, 0, 2]


def test_the_floor_stays_while_the_pools_sleep() -> None:
    async def script(world: World, sizes: list[int]) -> None:
        none = {"min": 0, "max": 2}
        fields = {"prefill__replicas": none, "decode__replicas": none, "autoscaling": {"mode": "Off"}}
        world.user_applies(gateway={"autoscaling": SCALED}, **fields)
        for role in POOL_ROLES:
            world.user_scales(POOLS, f"{NAME}-{role}", 0)
        await asyncio.sleep(60)
        assert summary(world)[0] == "ScaledToZero"
        budget = world.store.read(BUDGETS, SPACE, GATEWAY)
        assert budget["spec"]["maxUnavailable"] == 1

    assert played(script, gateway={"autoscaling": SCALED})[-1] == 2
    with pytest.raises(ManifestError, match=r"spec\.gateway\.autoscaling\.min"):
        deployment(gateway__autoscaling={"min": 0, "max": 2})


def test_taken_away_it_leaves_the_number_to_the_spec() -> None:
    async def script(world: World, sizes: list[int]) -> None:
        world.user_scales(WORKERS, GATEWAY, 5, "kube-controller-manager")
        world.user_edits("gateway", {"replicas": 3})
        await asyncio.sleep(30)
        assert world.store.peek(AUTOSCALERS, SPACE, GATEWAY) is None

    assert played(script, gateway={"autoscaling": SCALED})[-1] == 3


def test_where_the_api_is_not_served_the_floor_is_what_runs() -> None:
    text = msgspec.json.encode(deployment_body(gateway={"autoscaling": SCALED}))
    rendering = render(Inputs(text, "", Owner("u"), (), PLATFORM, MASTERS, frozenset(OPTIONAL) - {AUTOSCALERS}))
    [gateway] = [desired for desired in rendering.standing if desired.name == GATEWAY and desired.resource == WORKERS]
    owner = {"uid": "u", "controller": True}
    metadata = {"uid": "g", "ownerReferences": [owner], "annotations": {APPLIED: gateway.digest}}
    for replicas, written in ((0, 2), (1, 2), (2, None), (7, None)):
        live: Json = {"metadata": metadata, "spec": {**gateway.body["spec"], "replicas": replicas}}  # type: ignore[dict-item]
        size: Any = plan_handover(gateway, live, rendering.deployment.spec.gateway, Owner("u"))
        assert (size if size is None else size["spec"]["replicas"]) == written
    assert rendering.notes == ("HorizontalPodAutoscalers are left out: autoscaling/v2 is not served, or not granted",)


def test_one_that_cannot_measure_is_told_of_while_requests_are_served() -> None:
    async def script(world: World, sizes: list[int]) -> None:
        condition = {"type": "ScalingActive", "status": "False", "reason": "FailedGetResourceMetric"}
        condition |= {"message": "no metrics returned", "lastTransitionTime": stamp(world.clock())}
        world.store.set_status(AUTOSCALERS, SPACE, GATEWAY, {"conditions": [condition]})
        await asyncio.sleep(60)
        assert summary(world)[0] == "Serving"
        await asyncio.sleep(400)
        reason, messages = summary(world)
        assert reason == "GatewayNotScaled"
        assert "no metrics returned" in messages

    played(script, gateway={"autoscaling": SCALED})


def test_a_size_beside_an_autoscaler_is_refused() -> None:
    for fields in ({"replicas": 2, "autoscaling": SCALED}, {"autoscaling": {"min": 7, "max": 6}}):
        with pytest.raises(ManifestError, match=r"must be (absent while autoscaling|at most autoscaling\.max)"):
            deployment(gateway=fields)


def test_sizing_waits_for_the_reports_of_gateways_that_are_there() -> None:
    scaled, fixed = deployment(gateway__autoscaling=SCALED).spec.gateway, deployment(gateway__replicas=3).spec.gateway
    assert [scaled.replicas_at(ready) for ready in (0, 2, 5)] == [2, 2, 5]
    assert [fixed.replicas_at(ready) for ready in (0, 5)] == [3, 3]
