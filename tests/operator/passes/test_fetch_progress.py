"""A model that is being fetched: how far, in the status, seldom enough, and without asking when nothing is fetched."""

from __future__ import annotations

import asyncio
import itertools

from baton_operator.kube.kinds import DEPLOYMENTS
from baton_testing.kube.cluster import Affliction
from baton_testing.kube.world import NAME, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual

TOTAL = 50 << 30


def message(world: World) -> str:
    live = world.store.read(DEPLOYMENTS, SPACE, NAME)
    return next(str(condition["message"]) for condition in live["status"]["conditions"] if condition["type"] == "Ready")


def test_percent_moves_once_a_minute_at_most_and_stops_with_the_fetch() -> None:
    async def main() -> None:
        world = World(promise=Promise(floor=0, most=64))
        world.cluster.weather.job = Affliction({"active": 1})
        world.start()
        world.user_applies(model__source="hf://org/model@" + "a" * 40)
        await asyncio.sleep(20)
        assert message(world).startswith("the model is being fetched")
        assert "%" not in message(world), "what is not known is not 0 %"
        messages: list[tuple[float, str]] = []
        for step in range(1, 61):
            world.fetch_tells(f"fetched {TOTAL * step // 100} of {TOTAL} bytes")
            for _ in range(30):
                await asyncio.sleep(1)
                if not messages or messages[-1][1] != message(world):
                    messages.append((world.clock(), message(world)))
        assert messages[-1][1] == "the model is being fetched: 60 % (30.0 of 50.0 GiB)"
        moments = [at for at, _ in messages]
        assert all(later - earlier >= 59 for earlier, later in itertools.pairwise(moments[1:]))
        assert len(messages) >= 20, "and it does move"
        world.cluster.weather.job = None
        world.cluster.nudge()
        await asyncio.sleep(60)
        assert world.store.read(DEPLOYMENTS, SPACE, NAME)["status"]["summary"] == "Serving"
        asked = len([call for call in world.kube.made if call.startswith("list events")])
        await asyncio.sleep(600)
        assert len([call for call in world.kube.made if call.startswith("list events")]) == asked
        assert asked > 20
        await world.end()

    run_virtual(main())


def test_of_two_pods_that_fetch_the_newest_says_how_far_the_fetch_is() -> None:
    """The older one is on a node that does not answer: its last words stay."""

    def tells(gib: int) -> Affliction:
        running = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
        return Affliction(running, ("Unhealthy", f"Readiness probe failed: fetched {gib << 30} of {TOTAL} bytes"))

    async def main() -> None:
        world = World(promise=Promise(floor=0, most=64))
        world.cluster.weather.job = Affliction({"active": 1})
        world.start()
        world.user_applies(model__source="hf://org/model@" + "a" * 40)
        await asyncio.sleep(20)
        world.fetch_pod_is(tells(40), "older")
        await asyncio.sleep(10)
        world.fetch_pod_is(tells(10), "newer")
        await asyncio.sleep(130)
        assert message(world) == "the model is being fetched: 20 % (10.0 of 50.0 GiB)"
        await world.end()

    run_virtual(main())
