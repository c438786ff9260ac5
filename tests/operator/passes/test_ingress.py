"""Requests from outside the cluster: a Service without an address, a route that no Gateway accepts."""

from __future__ import annotations

import asyncio

from baton_operator.kube.kinds import DEPLOYMENTS, ROUTES, SERVICES
from baton_operator.passes.ingress import ANSWERED_WITHIN_S
from baton_testing.kube.calm_world import play
from baton_testing.kube.planted_causes import until
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, World

GATEWAY = f"{NAME}-gateway"
BALANCED = {"service": {"type": "LoadBalancer"}, "openAccess": True}
ROUTED = {"route": {"parent": "edge"}, "openAccess": True}
SERVES = ("True", "Serving")


def condition(world: World, kind: str) -> tuple[str, str]:
    status = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]
    return next(
        (condition["status"], condition["reason"]) for condition in status["conditions"] if condition["type"] == kind
    )


def message(world: World) -> str:
    return str(world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["message"])


def find_conditions(status: str, reason: str, generation: int = 1, **more: str) -> Json:
    condition: Json = {"type": "Accepted", "status": status, "reason": reason, "observedGeneration": generation}
    return {"parents": [{"parentRef": {"name": "edge"}, "controllerName": "x", "conditions": [condition | more]}]}


def test_a_load_balancer_that_gives_no_address_is_told_of_after_a_while() -> None:
    async def script(world: World) -> None:
        assert condition(world, "Stalled") == ("False", "AsExpected")
        await asyncio.sleep(ANSWERED_WITHIN_S + 2.0)
        assert condition(world, "Stalled") == ("True", "NoAddress")
        assert GATEWAY in message(world)
        assert condition(world, "Ready") == SERVES, "inside of the cluster it is reached"
        ingress: Json = {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}}
        world.store.set_status(SERVICES, SPACE, GATEWAY, ingress)
        await until(lambda: condition(world, "Stalled") == ("False", "AsExpected"), 10.0)
        assert condition(world, "Stalled") == ("False", "AsExpected")

    play(script, gateway=BALANCED)


def test_a_service_of_another_type_needs_no_address() -> None:
    async def script(world: World) -> None:
        await asyncio.sleep(ANSWERED_WITHIN_S + 2.0)
        assert condition(world, "Stalled") == ("False", "AsExpected")

    play(script)


def test_a_route_that_no_gateway_takes_is_told_of_after_a_while() -> None:
    async def script(world: World) -> None:
        assert condition(world, "Stalled") == ("False", "AsExpected")
        await asyncio.sleep(ANSWERED_WITHIN_S + 2.0)
        assert condition(world, "Stalled") == ("True", "RouteNotAccepted")
        assert "does the Gateway edge exist" in message(world)
        assert condition(world, "Ready") == SERVES
        world.store.set_status(ROUTES, SPACE, GATEWAY, find_conditions("True", "Accepted"))
        await until(lambda: condition(world, "Stalled") == ("False", "AsExpected"), 10.0)
        assert condition(world, "Stalled") == ("False", "AsExpected")

    play(script, gateway=ROUTED)


def test_a_gateway_that_refuses_a_route_is_told_of_at_once_until_the_route_is_another() -> None:
    async def script(world: World) -> None:
        generation = world.store.read(ROUTES, SPACE, GATEWAY)["metadata"]["generation"]
        why = "no listener has this hostname"
        refusal = find_conditions("False", "NoMatchingListenerHostname", generation, message=why)
        world.store.set_status(ROUTES, SPACE, GATEWAY, refusal)
        await asyncio.sleep(5.0)
        assert condition(world, "Stalled") == ("True", "RouteNotAccepted")
        assert f"the Gateway edge refuses the HTTPRoute: NoMatchingListenerHostname: {why}" in message(world)
        world.user_edits("gateway.route", {"parent": "other"})
        await asyncio.sleep(5.0)
        assert condition(world, "Stalled") == ("False", "AsExpected"), "nobody has looked at the new one yet"
        refused_again = find_conditions("False", "NoMatchingListenerHostname", generation + 1, message=why)
        world.store.set_status(ROUTES, SPACE, GATEWAY, refused_again)
        await asyncio.sleep(5.0)
        assert condition(world, "Stalled") == ("True", "RouteNotAccepted")

    play(script, gateway=ROUTED)


def test_a_gateway_without_time_outs_is_told_of_with_the_value_that_leaves_them_out() -> None:
    """GKE's Gateway controller refuses the field (github.com/kserve/kserve/issues/5311)."""

    async def script(world: World) -> None:
        generation = world.store.read(ROUTES, SPACE, GATEWAY)["metadata"]["generation"]
        refusal = find_conditions("False", "UnsupportedValue", generation, message="timeouts is not supported")
        world.store.set_status(ROUTES, SPACE, GATEWAY, refusal)
        await asyncio.sleep(5.0)
        assert condition(world, "Stalled") == ("True", "RouteNotAccepted")
        assert "routeTimeouts: false" in message(world)

    play(script, gateway=ROUTED)


def test_a_route_that_one_of_several_gateways_takes_is_taken() -> None:
    async def script(world: World) -> None:
        both = [find_conditions(status, "ObjectEvent")["parents"][0] for status in ("False", "True")]
        world.store.set_status(ROUTES, SPACE, GATEWAY, {"parents": both})
        await asyncio.sleep(ANSWERED_WITHIN_S)
        assert condition(world, "Stalled") == ("False", "AsExpected")

    play(script, gateway=ROUTED)
