"""An operator that runs for weeks: deployments come, change and go, and nothing of them stays in its process."""

from __future__ import annotations

import gc
from collections import Counter

from baton_operator.kube import cache
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.passes import apply
from baton_operator.passes.reconcile import Reconciler
from baton_testing.held_sizes import held_sizes
from baton_testing.kube.calm_world import play
from baton_testing.kube.world import NAME, SPACE, World

BOUNDED = {
    "Cache._removed": f"{cache.MAX_REMOVED} uids",
    "Applier._ours": f"{apply.MAX_OURS} places",
    "Renderings._kept": "the last few",
}
"""Containers that may grow with every deployment, each with its bound."""


def held_by_operator(world: World) -> Counter[str]:
    """The sizes of everything that the running operator holds; its Reconciler belongs to a coroutine alone."""
    assert world.runtime is not None
    reconcilers = (item for item in gc.get_objects() if type(item) is Reconciler)  # asks no item what it is
    return held_sizes(
        world.runtime,
        *(reconciler for reconciler in reconcilers if reconciler._caches is world.runtime.caches),
        closed=BOUNDED,
    )


async def one_life(world: World, number: int) -> None:
    """Apply a deployment, change its workers, and delete it with all that belongs to it."""
    world.user_applies()
    await world.settle()
    world.user_edits("decode.env", [{"name": "UCX_TLS", "value": f"tcp,{number}"}])
    await world.settle()
    world.by_hand = True
    world.store.delete(DEPLOYMENTS, SPACE, NAME)
    for resource, namespace, name in list(world.store._objects):  # the garbage collector
        if namespace == SPACE:
            world.store.remove(resource, namespace, name)
    await world.settle()
    world.by_hand = False


def test_nothing_stays_of_deployments_that_came_and_went() -> None:
    async def script(world: World) -> None:
        await one_life(world, 0)
        before = held_by_operator(world)
        assert before["Cache._removed"], "the caches are among what is counted"
        for number in range(1, 3):
            await one_life(world, number)
        grown = {label: size for label, size in held_by_operator(world).items() if size > before[label]}
        assert grown.keys() <= BOUNDED.keys(), grown

    play(script)


def test_objects_that_are_gone_are_remembered_up_to_a_bound() -> None:
    pods = cache.Cache(DEPLOYMENTS, lambda key: None)
    for number in range(cache.MAX_REMOVED + 500):
        pods._drop((SPACE, f"pod-{number}"), f"uid-{number}", number)
    assert len(pods._removed) == cache.MAX_REMOVED
    assert f"uid-{cache.MAX_REMOVED + 499}" in pods._removed
