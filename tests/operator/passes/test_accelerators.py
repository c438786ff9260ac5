"""A pool changes its type of accelerator: by the status, with new workers before old ones go, over any restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from baton_control.sizing.decision.scaling import Sized, SizingRequest, TypeChoice
from baton_operator.kube.kinds import DEPLOYMENTS, PODS, WORKERS
from baton_testing.kube.cluster import is_ready
from baton_testing.kube.rule_cases import two_types
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import POOL_ROLES, Role


class Told:
    """Sizing that keeps the sizes, and says the type that it was told to."""

    def __init__(self) -> None:
        self.type: str | None = None
        self.others: list[Mapping[str, int]] = []

    def decide(self, request: SizingRequest) -> Sized:
        self.others.append(dict(request.pools[Role.PREFILL].others))
        types = (
            {} if self.type is None else {Role.PREFILL: TypeChoice(self.type, f"prefill on {self.type}: it is cheaper")}
        )
        return Sized({role: 2 for role in POOL_ROLES}, {role: "as told" for role in POOL_ROLES}, False, types=types)


def played(script: Callable[[World, Told], Awaitable[None]]) -> None:
    async def main() -> None:
        world, sizing = World(promise=Promise(floor=2, most=3), has_links=True), Told()
        world.sizing = sizing
        world.start()
        world.user_applies(prefill__accelerator=two_types())
        await world.settle()
        await script(world, sizing)
        await world.end()

    run_virtual(main())


def status(world: World) -> Json:
    status: Json = world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]
    return status


def nodes(world: World) -> list[str]:
    """The node selectors of ready prefill workers: empty for the type that the manifest names first."""
    pods = world.store.all(PODS, SPACE)
    running = [pod for pod in pods if pod["metadata"]["labels"].get("baton.dev/role") == "prefill" and is_ready(pod)]
    return sorted(str(pod["spec"].get("nodeSelector", {}).get("example.com/gpu", "")) for pod in running)


def test_a_pool_goes_over_to_the_type_that_was_chosen_and_stays_over_restarts() -> None:
    async def script(world: World, sizing: Told) -> None:
        assert status(world)["prefill"]["accelerator"] == "H200"
        assert "accelerator" not in status(world)["decode"]
        assert nodes(world) == ["", ""]
        sizing.type = "H100"
        await asyncio.sleep(30)
        await world.settle()
        assert nodes(world) == ["h100", "h100"], "World checks that two serve all the while, and three run at most"
        assert status(world)["prefill"]["accelerator"] == "H100"
        assert status(world)["prefill"]["choice"] == "prefill on H100: it is cheaper"
        assert {"H200": 1} in sizing.others, "sizing hears of workers that are still on the other type"
        assert sizing.others[-1] == {}
        sizing.type = None
        await world.restart()
        await world.settle()
        assert nodes(world) == ["h100", "h100"]
        assert status(world)["prefill"]["choice"] == "prefill on H100: it is cheaper"

    played(script)


def test_a_lost_status_changes_no_type() -> None:
    async def script(world: World, sizing: Told) -> None:
        sizing.type = "H100"
        await asyncio.sleep(30)
        await world.settle()
        sizing.type = None
        await world.stop()
        before = {worker_set["metadata"]["name"] for worker_set in world.store.all(WORKERS, SPACE)}
        body = world.store.read(DEPLOYMENTS, SPACE, NAME)
        body["status"] = {}
        world.store.replace(DEPLOYMENTS, body, "backup", subresource="status")
        world.start()
        await world.settle()
        assert {worker_set["metadata"]["name"] for worker_set in world.store.all(WORKERS, SPACE)} == before
        assert status(world)["prefill"]["accelerator"] == "H100"

    played(script)


def test_a_type_that_the_manifest_does_not_name_any_more_gives_way_to_the_first() -> None:
    async def script(world: World, sizing: Told) -> None:
        sizing.type = "H100"
        await asyncio.sleep(30)
        await world.settle()
        sizing.type = None
        world.user_applies(prefill__accelerator=two_types(other__type="A100", other__nodeSelector={"x": "y"}))
        await world.settle()
        assert status(world)["prefill"]["accelerator"] == "H200"
        assert nodes(world) == ["", ""]

    played(script)


def test_prices_and_further_types_start_no_worker_anew() -> None:
    async def script(world: World, sizing: Told) -> None:
        before = {worker_set["metadata"]["name"] for worker_set in world.store.all(WORKERS, SPACE)}
        world.user_applies(prefill__accelerator=two_types(costPerHour=9, other__costPerHour=2))
        await world.settle()
        world.user_applies(prefill__accelerator={"resource": "nvidia.com/gpu", "type": "H200"})
        await world.settle()
        assert {worker_set["metadata"]["name"] for worker_set in world.store.all(WORKERS, SPACE)} == before
        assert "accelerator" not in status(world)["prefill"]

    played(script)
