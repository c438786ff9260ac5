"""The top line stays true, and work goes on, where a part of the cluster does not: found by playing such days."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from baton_control.names import Key
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.pairs import PAIR_MEMORY_S, Pairs
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, POLICIES, POOLS, SERVICES, WORKERS
from baton_operator.kube.kube_api import Forbidden
from baton_operator.objects.metadata import ROLE_LABEL, TEMPLATE_LABEL
from baton_operator.telemetry import GatewayReport
from baton_testing.kube.calm_world import play
from baton_testing.kube.cluster import is_ready
from baton_testing.kube.planted_causes import role_of, until
from baton_testing.kube.world import LINKED, NAME, SPACE, World
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Role

ONE_TO_THREE: dict[str, Any] = {
    "prefill__replicas": {"min": 1, "max": 3},
    "decode__replicas": {"min": 1, "max": 3},
    "autoscaling__mode": "External",
}


def status(world: World) -> dict[str, Any]:
    live_status: dict[str, Any] = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]
    return live_status


def condition(world: World, kind: str = "Ready") -> tuple[str, str]:
    return next(
        (condition["status"], condition["reason"])
        for condition in status(world)["conditions"]
        if condition["type"] == kind
    )


def refusing(what: str) -> Callable[[str], Forbidden | None]:
    """Answers to calls: no right to write what has this in its path."""
    return lambda call: (
        Forbidden(f"{what} is forbidden") if call.startswith(("create ", "apply ")) and what in call else None
    )


def test_a_gateway_that_is_not_ready_is_seen_though_its_deployment_still_counts_it() -> None:
    """A Deployment's counts stand still while the controller manager is away."""

    async def script(world: World) -> None:
        assert condition(world) == ("True", "Serving")
        world.controllers_stand_still()
        for pod in [pod_body for pod_body in world.store.all(PODS, SPACE) if role_of(pod_body) == "gateway"]:
            name = pod["metadata"]["name"]
            conditions = [{"type": "Ready", "status": "False"}]
            world.store.set_status(PODS, SPACE, name, {"phase": "Running", "conditions": conditions})
        await asyncio.sleep(5.0)
        gateway = world.store.read(WORKERS, SPACE, f"{NAME}-gateway")
        assert gateway["status"]["readyReplicas"] >= 1
        assert condition(world) == ("False", "NoGateway")

    play(script)


def test_without_the_service_that_clients_ask_nothing_is_ready_and_all_else_goes_on() -> None:
    async def script(world: World) -> None:
        world.kube.refuses = refusing("services/chat-gateway")
        world.user_deletes(SERVICES, "chat-gateway")
        await asyncio.sleep(5.0)
        assert condition(world) == ("False", "Forbidden")
        assert condition(world, "Available") == ("False", "NoService")
        world.user_scales(POOLS, "chat-decode", 2)
        await until(lambda: status(world)["decode"]["summary"] == "2/2", 120.0)
        assert status(world)["decode"]["summary"] == "2/2", "one refused object stops no other"
        world.kube.refuses = lambda call: None
        await until(lambda: condition(world) == ("True", "Serving"), 60.0)
        assert condition(world) == ("True", "Serving")

    play(script, **ONE_TO_THREE)


def test_without_a_policy_that_lets_requests_through_nobody_knows() -> None:
    async def script(world: World) -> None:
        world.kube.refuses = refusing("networkpolicies/chat-decode")
        world.user_deletes(POLICIES, "chat-decode")
        await asyncio.sleep(5.0)
        assert condition(world, "Available") == ("Unknown", "NoPolicy")
        world.kube.refuses = lambda call: None
        await until(lambda: condition(world) == ("True", "Serving"), 60.0)
        assert condition(world) == ("True", "Serving")

    play(script)


@pytest.mark.parametrize("what", ["services/chat-decode", "poddisruptionbudgets/chat-gateway", "llmpools/chat-prefill"])
def test_an_object_that_no_pod_needs_keeps_no_worker_back_when_it_is_refused(what: str) -> None:
    async def script(world: World) -> None:
        await world.stop()
        world.kube.refuses = refusing(what)
        world.user_edits("decode.replicas", {"min": 2, "max": 3})
        plural, name = what.split("/")
        resource = next(kind for kind, _ in world.store.everything() if kind.plural == plural)
        world.by_hand = True
        world.store.delete(resource, SPACE, name)
        world.by_hand = False
        world.start()
        await until(lambda: status(world)["decode"]["summary"] == "2/2", 120.0)
        assert status(world)["decode"]["summary"] == "2/2"
        assert condition(world, "Stalled") == ("True", "Forbidden")
        assert condition(world) == ("True", "Serving")

    play(script, **ONE_TO_THREE)


class Gateways:
    """Links of every ready worker, and none at all until `from_s` on the clock of the world."""

    def __init__(self, world: World) -> None:
        self._world, self.from_s = world, 0.0
        self.pairs: Callable[[], Pairs | None] = lambda: None
        self.is_blind = False
        self.other_version: str | None = None

    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport | None:
        if self._world.clock() < self.from_s:
            return None
        if self.other_version is not None:
            return GatewayReport(None, other_version=self.other_version)
        counts: dict[tuple[Role, str], int] = {}
        for pod in self._world.store.all(PODS, SPACE):
            labels = pod["metadata"]["labels"]
            if is_ready(pod) and TEMPLATE_LABEL in labels and "deletionTimestamp" not in pod["metadata"]:
                place = (Role(labels[ROLE_LABEL]), labels[TEMPLATE_LABEL])
                counts[place] = counts.get(place, 0) + 1
        return GatewayReport({} if self.is_blind else counts, pairs=self.pairs())

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        assert flips == (), "nobody flips here"


@pytest.mark.parametrize(("silent_s", "seen"), [(12.0, {"True"}), (200.0, {"True", "Unknown"})])
def test_another_process_of_the_operator_changes_nothing_that_is_said_until_gateways_had_time_to_come(
    silent_s: float, seen: set[str]
) -> None:
    async def script(world: World) -> None:
        gateways = world.telemetry = Gateways(world)
        await world.restart()
        await world.settle()
        assert condition(world) == ("True", "Serving")
        await world.stop()
        gateways.from_s = world.clock() + 1.0 + silent_s
        seen_tops = set()
        world.store.on_commit.append(lambda resource, change, before, after: seen_tops.add(ready(after)))
        await asyncio.sleep(1.0)
        world.start()
        await asyncio.sleep(silent_s + 60.0)
        assert seen_tops - {""} <= seen
        assert condition(world) == ("True", "Serving")
        if "Unknown" in seen:
            assert "Unknown" in seen_tops

    play(script, platform=LINKED)


def test_gateways_of_another_release_are_named_and_no_worker_that_they_use_is_stopped() -> None:
    """The operator was upgraded, and the gateways that run speak another wire version."""

    async def script(world: World) -> None:
        gateways = world.telemetry = Gateways(world)
        gateways.other_version = "version: 11..11 here, 3..3 there"
        seen_tops = set()
        world.store.on_commit.append(lambda resource, change, before, after: seen_tops.add(ready(after)))
        await world.restart()
        await asyncio.sleep(60.0)
        assert condition(world) == ("True", "Serving")
        assert seen_tops - {""} == {"True"}
        message = next(
            entry["message"] for entry in status(world)["conditions"] if "another release" in entry["message"]
        )
        assert "version: 11..11 here, 3..3 there" in message
        assert "baton.dev/upgrade" in message
        world.user_scales(POOLS, "chat-decode", 3)
        await until(lambda: status(world)["decode"]["summary"] == "3/3", 120.0)
        assert status(world)["decode"]["summary"] == "3/3"
        await asyncio.sleep(30.0)
        assert condition(world, "Reconciling") == ("False", "AsExpected")
        world.user_scales(POOLS, "chat-decode", 1)
        await asyncio.sleep(120.0)
        assert status(world)["decode"]["ready"] == 3, "which of them the gateways use is not known"
        gateways.other_version = None
        await until(lambda: status(world)["decode"]["summary"] == "1/1", 120.0)
        assert status(world)["decode"]["summary"] == "1/1"
        assert not any("another release" in entry["message"] for entry in status(world)["conditions"])

    play(script, platform=LINKED, **ONE_TO_THREE)


def test_gateways_that_were_made_without_a_link_are_named_and_hold_the_rollout_until_they_have_gone() -> None:
    async def script(world: World) -> None:
        gateways = world.telemetry = Gateways(world)
        gateways.from_s = world.clock() + 1e9
        world.platform = LINKED
        await world.restart()
        await asyncio.sleep(60.0)
        assert condition(world) == ("True", "Serving")
        assert any("have no link to the operator" in entry["message"] for entry in status(world)["conditions"])
        body = world.store.read(DEPLOYMENTS, SPACE, NAME)
        body["metadata"]["annotations"] = {"baton.dev/upgrade": "1"}
        world.store.replace(DEPLOYMENTS, body, "kubectl-annotate")
        gateways.from_s = world.clock() + 5.0
        revision = status(world)["revision"]
        await until(lambda: status(world)["revision"] != revision, 60.0)
        await until(lambda: condition(world, "Progressing") == ("False", "RolloutComplete"), 600.0)
        assert condition(world, "Progressing") == ("False", "RolloutComplete")
        assert not any("link to the operator" in entry["message"] for entry in status(world)["conditions"])

    play(script, **ONE_TO_THREE)


def ready(body: dict[str, Any]) -> str:
    conditions = body.get("status", {}).get("conditions", ())
    return (
        next((condition["status"] for condition in conditions if condition["type"] == "Ready"), "")
        if is_ours(body)
        else ""
    )


def is_ours(body: dict[str, Any]) -> bool:
    return bool(body.get("kind") == DEPLOYMENTS.kind)


def test_a_pair_that_is_lost_and_not_replaced_is_missed_though_no_gateway_tells_anything_more() -> None:
    async def script(world: World) -> None:
        gateways = world.telemetry = Gateways(world)
        await world.restart()
        await world.settle()
        assert condition(world) == ("True", "Serving")
        lost_s = world.clock()
        gateways.pairs = lambda: (
            Pairs(1, may_lack_soon=True) if world.clock() - lost_s < PAIR_MEMORY_S else Pairs(1, ("gateway-1",))
        )
        gateways.is_blind = True
        assert world.runtime is not None
        world.runtime.offer_all()
        await asyncio.sleep(PAIR_MEMORY_S - 1.0)
        assert condition(world) == ("True", "Serving")
        assert status(world)["decode"]["routable"] == 0
        await asyncio.sleep(4.0)
        assert condition(world) == ("False", "NoRoutableWorkers")

    play(script, **ONE_TO_THREE)


def test_a_worker_that_went_down_with_the_old_process_is_not_believed_in() -> None:
    async def script(world: World) -> None:
        gateways = world.telemetry = Gateways(world)
        await world.restart()
        await world.settle()
        await world.stop()
        gateways.from_s = world.clock() + 1000.0
        world.controllers_stand_still()
        for pod in [pod_body for pod_body in world.store.all(PODS, SPACE) if role_of(pod_body) == "decode"]:
            conditions = [{"type": "Ready", "status": "False"}]
            down = {"phase": "Running", "conditions": conditions}
            world.store.set_status(PODS, SPACE, pod["metadata"]["name"], down)
        world.start()
        await asyncio.sleep(10.0)
        assert condition(world) == ("False", "NoRoutableWorkers")

    play(script)
