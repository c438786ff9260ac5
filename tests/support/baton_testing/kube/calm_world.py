"""One deployment at rest in a world without faults, and what a test does with it then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from baton_operator.objects.cluster import Platform
from baton_testing.kube.world import PLATFORM, Promise, World
from baton_testing.virtual_time.loop import run_virtual

ANY = Promise(floor=0, most=9)


def play(
    script: Callable[[World], Awaitable[None]],
    promise: Promise = ANY,
    nodes: int = 0,
    platform: Platform = PLATFORM,
    **fields: object,
) -> None:
    """Apply the deployment with these fields, let it settle, and run the script on virtual time."""

    async def main() -> None:
        world = World(promise=promise, nodes=nodes)
        world.platform = platform
        world.start()
        try:
            world.user_applies(**fields)
            await world.settle()
            await script(world)
        finally:
            await world.end()

    run_virtual(main())
