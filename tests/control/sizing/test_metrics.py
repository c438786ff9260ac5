"""The cluster's operator shows its pools and decisions as `baton up` does, and nothing of what is gone."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, Sized
from baton_control.sizing.metrics import SizingMetrics
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.passes.reconcile import Installation, Reconciler
from baton_testing.kube.campaign import serving
from baton_testing.kube.clock import wall
from baton_testing.kube.world import MASTERS, NAME, PLATFORM, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import POOL_ROLES

WORKERS, HOLDS, DECISIONS = "baton_pool_workers", "baton_sizing_holds", "baton_sizing_decisions_total"


def test_pools_of_every_mode_are_shown_and_forgotten_with_their_deployment() -> None:
    registry = CollectorRegistry()

    def shown(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"namespace": SPACE, "deployment": NAME, **labels})

    async def main() -> None:
        world = World(promise=Promise(), rest=rest)
        world.start()
        await world.settle()
        assert world.runtime is not None
        reconciler = Reconciler(
            world.kube,
            world.runtime.caches,
            Installation(lambda: PLATFORM, lambda: MASTERS),
            measured=SizingMetrics(registry),
            now=lambda: wall(world.clock()),
            clock=world.clock,
        )
        for _ in range(2):
            await reconciler.reconcile(Key(SPACE, NAME))
        assert [shown(WORKERS, role="decode", state=state) for state in ("wanted", "running")] == [2, 2]
        assert shown(HOLDS) == 1
        assert shown(DECISIONS, role="decode", direction="hold") == 1, "the same answer again is no decision"
        world.user_edits("autoscaling.mode", "Off")
        await world.settle()
        await reconciler.reconcile(Key(SPACE, NAME))
        assert shown(WORKERS, role="prefill", state="wanted") == 2
        assert shown(DECISIONS, role="decode", direction="hold") == 1
        world.user_deletes(DEPLOYMENTS, NAME)
        await world.settle()
        await reconciler.reconcile(Key(SPACE, NAME))
        assert shown(WORKERS, role="decode", state="wanted") is None
        assert shown(HOLDS) is None
        await world.end()

    rest = serving()
    run_virtual(main())


def test_a_first_step_up_is_an_increase_for_prometheus() -> None:
    registry, key = CollectorRegistry(), Key(SPACE, NAME)
    metrics = SizingMetrics(registry)
    pools = dict.fromkeys(POOL_ROLES, PoolNow(1, 1))

    def decisions(direction: str) -> float | None:
        labels = {"namespace": SPACE, "deployment": NAME, "role": "decode", "direction": direction}
        return registry.get_sample_value(DECISIONS, labels)

    metrics.saw(key, Sized(dict.fromkeys(POOL_ROLES, 1), dict.fromkeys(POOL_ROLES, ""), holds=False), pools)
    assert (decisions("up"), decisions("down")) == (0, 0), "a series that begins at 1 has no increase"
    metrics.saw(key, Sized(dict.fromkeys(POOL_ROLES, 2), dict.fromkeys(POOL_ROLES, ""), holds=False), pools)
    assert (decisions("up"), decisions("down")) == (1, 0)
    metrics.forget(key)
    assert decisions("up") is None
