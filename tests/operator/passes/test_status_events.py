"""Events: one for each story with a count, and its end is never kept back."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest

from baton_control.hashes import Revision
from baton_control.rollout import REASONS, Group, RolloutPhase, Step
from baton_operator.kube.kinds import EVENTS, POOLS, SERVICES
from baton_operator.passes.deployment_status import status_of
from baton_operator.passes.pass_result import PassResult
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.problems import PassProblem
from baton_operator.passes.status_events import MOST, WINDOW_S, EventBook, StatusEvent, find_status_events
from baton_operator.schema.status import DeploymentStatus
from baton_testing.kube.manifests import deployment
from baton_testing.kube.planted_causes import LOOSE
from baton_testing.kube.world import NAME, SPACE, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.values import POOL_ROLES

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NEW = Revision("fit", "new")
DEPLOYMENT = deployment(autoscaling__mode="Off")


def status(
    before: DeploymentStatus, routable: int = 1, workers: int = 1, revision: Revision = NEW, *problems: PassProblem,
    phase: RolloutPhase = RolloutPhase.COMPLETE, limit: str = "",
) -> DeploymentStatus:  # fmt: skip
    seen = PassResult(
        deployment=DEPLOYMENT,
        generation=1,
        wanted=dict.fromkeys(POOL_ROLES, revision),
        plans={role: PoolPlan(workers, None, limit) for role in POOL_ROLES},
        sized=None,
        sets=(),
        groups=tuple(Group(role, revision, workers, routable) for role in POOL_ROLES),
        step=Step((), REASONS[phase], phase),
        gateways_ready=1,
        report=None,
        problems=problems,
    )
    return status_of(seen, before, NOW)


def reasons(before: DeploymentStatus, after: DeploymentStatus) -> list[tuple[bool, str]]:
    return [(turn.warns, turn.reason) for turn in find_status_events(before, after)]


def test_a_status_tells_its_turns_and_nothing_twice() -> None:
    starting = status(DeploymentStatus(), routable=0)
    assert reasons(DeploymentStatus(), starting) == []
    serving = status(starting)
    assert reasons(starting, serving) == [(False, "Available"), (False, "RolloutComplete")]
    assert reasons(serving, serving) == []
    lost = status(serving, routable=0)
    assert reasons(serving, lost) == [(True, "NoRoutableWorkers")]
    other = status(serving, 1, 1, Revision("fit", "newer"), phase=RolloutPhase.STARTING)
    assert reasons(serving, other) == [(False, "RolloutStarted")]
    assert reasons(other, status(other, 1, 1, Revision("fit", "newer"))) == [(False, "RolloutComplete")]


def test_what_was_wrong_is_told_to_be_over() -> None:
    serving = status(status(DeploymentStatus(), routable=0))
    bad = status(serving, 1, 1, NEW, PassProblem("MissingSecret", "x"))
    assert reasons(serving, bad) == [(True, "MissingSecret")]
    assert reasons(bad, status(bad)) == [(False, "Recovered")]
    bound = status(serving, limit="decode: 3 instead of 9 by replicas.max 3")
    assert reasons(serving, bound) == [(True, "OutOfBounds")]
    assert reasons(bound, status(bound)) == [(False, "ScalingFree")]
    fetching = status(serving, 0, 1, NEW, PassProblem("FetchingModel", "x", lasts=False))
    assert (False, "FetchingModel") in reasons(serving, fetching)
    assert (False, "ModelFetched") in reasons(fetching, status(fetching))


def test_both_pools_are_told_of_and_the_last_twenty_sizes_kept() -> None:
    before = status(DeploymentStatus())
    for size in range(2, 20):
        after = status(before, routable=size, workers=size)
        assert reasons(before, after) == [(False, "Scaled"), (False, "Scaled")]
        before = after
    decisions = before.scaling_decisions
    assert len(decisions) == 20
    assert [(decision.pool, decision.from_, decision.to) for decision in decisions[-2:]] == [
        ("prefill", 18, 19),
        ("decode", 18, 19),
    ]


def test_the_same_again_raises_a_count_whatever_its_numbers() -> None:
    book = EventBook()
    first = book.record(StatusEvent(False, "Scaled", "decode 1 to 2: forecast 3.5 req/s", "decode"), 100.0)
    again = book.record(StatusEvent(False, "Scaled", "decode 2 to 3: forecast 7.25 req/s", "decode"), 130.0)
    other = book.record(StatusEvent(False, "Scaled", "prefill 2 to 3: forecast 7.25 req/s", "prefill"), 131.0)
    assert first is not None
    assert again is not None
    assert other is not None
    assert (first.count, again.count, other.count) == (1, 2, 1)
    assert (first.first, again.first) == (100.0, 100.0)
    late = book.record(StatusEvent(False, "Scaled", "decode 3 to 4: forecast 9 req/s", "decode"), 5000.0)
    assert late is not None
    assert (late.count, late.first) == (1, 5000.0)


@pytest.mark.parametrize("reason", ["Available", "Recovered", "RolloutComplete", "ModelFetched", "Restored"])
def test_a_flood_is_bounded_and_the_end_is_told_all_the_same(reason: str) -> None:
    book = EventBook()
    words = [StatusEvent(True, "A", f"{chr(97 + n % 26)}{chr(97 + n // 26)}") for n in range(500)]
    assert sum(book.record(turn, n * WINDOW_S / 600) is not None for n, turn in enumerate(words)) <= MOST
    assert book.record(StatusEvent(False, reason, "over", closes=True), WINDOW_S - 1) is not None


def events(world: World) -> dict[str, Any]:
    return {event["reason"]: event for event in world.store.all(EVENTS, SPACE) if event["reason"] != "FailedMount"}


def test_five_sizes_in_five_minutes_are_all_told_and_an_outage_ends_in_words() -> None:
    async def main() -> dict[str, Any]:
        world = World(promise=LOOSE)
        world.start()
        sizes: dict[str, Any] = {role: {"replicas": {"min": 1, "max": 9}} for role in ("prefill", "decode")}
        world.user_applies(autoscaling={"mode": "Off"}, **sizes)
        await asyncio.sleep(60)
        for size in (2, 3, 4, 5, 6):
            for role in POOL_ROLES:
                world.user_scales(POOLS, f"{NAME}-{role}", size)
            await asyncio.sleep(40)
        by_reason = events(world)
        scaled = {event["message"].split()[0]: event["count"] for event in world.store.all(EVENTS, SPACE)
                  if event["reason"] == "Scaled"}  # fmt: skip
        assert scaled == {"prefill": 5, "decode": 5}
        assert by_reason["Scaled"]["lastTimestamp"] > by_reason["Scaled"]["firstTimestamp"]
        world.user_deletes(SERVICES, f"{NAME}-gateway")
        await asyncio.sleep(30)
        by_reason = events(world)
        await world.end()
        return by_reason

    by_reason = run_virtual(main())
    assert "Service chat-gateway" in by_reason["Restored"]["message"]
    assert by_reason["Available"]["type"] == "Normal"
