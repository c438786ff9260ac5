"""The history that gateways get: decisions of the status, a limit that is met, restarts of Pods."""

from __future__ import annotations

import json
from typing import Any

from baton_control.names import Key
from baton_operator.passes.announced_history import status_history
from baton_operator.passes.reconcile import Installation, Reconciler
from baton_operator.schema.status import DeploymentStatus
from baton_testing.kube.campaign import serving
from baton_testing.kube.clock import wall
from baton_testing.kube.world import MASTERS, NAME, PLATFORM, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.deployment_history import MAX_HISTORY_BYTES, DeploymentHistory, encode_history

AT = "2026-11-29T07:00:0{}Z"


def status(limited: str = "True") -> DeploymentStatus:
    decision = {"time": AT.format(1), "pool": "decode", "from": 2, "to": 3, "reason": "TPOT p95 41 ms misses 30 ms"}
    condition = {
        "type": "ScalingLimited",
        "status": limited,
        "reason": "AtMaximum",
        "message": "decode wants 5 workers, replicas.max is 3",
        "lastTransitionTime": AT.format(2),
    }
    raw = {"scalingDecisions": [decision], "conditions": [condition]}
    return DeploymentStatus.model_validate_json(json.dumps(raw))


def pod(name: str, **last: Any) -> dict[str, Any]:
    container = {"name": "worker", "restartCount": 2, "lastState": {"terminated": last} if last else {}}
    return {"metadata": {"name": name}, "status": {"containerStatuses": [container]}}


def test_it_has_decisions_limits_and_restarts_by_time() -> None:
    pods = [pod("chat-decode-0", finishedAt=AT.format(0), reason="OOMKilled", exitCode=137), pod("chat-decode-1")]
    history = status_history(status(), pods, {"decode": "decode 3: forecast"}, {"decode": 3})
    assert [f"{change.kind} {change.subject}: {change.text}" for change in history.entries] == [
        "restart chat-decode-0: start 3: OOMKilled, exit code 137",
        "decision decode: 2 to 3: TPOT p95 41 ms misses 30 ms",
        "limit deployment: decode wants 5 workers, replicas.max is 3",
    ]
    assert history.reasons == {"decode": "decode 3: forecast"}
    assert history.wanted == {"decode": 3}


def test_a_condition_that_something_is_wrong_is_a_change_and_a_good_one_is_none() -> None:
    wrong = {"type": "Ready", "status": "False", "reason": "MissingSecret", "message": "no Secret 'hf'"}
    good = {"type": "Stalled", "status": "False", "reason": "Working", "message": "x"}
    conditions = [condition | {"lastTransitionTime": AT.format(3)} for condition in (wrong, good)]
    given = DeploymentStatus.model_validate_json(json.dumps({"conditions": conditions}))
    assert [
        f"{change.kind} {change.subject}: {change.text}" for change in status_history(given, [], {}, {}).entries
    ] == ["condition Ready False: MissingSecret: no Secret 'hf'"]


def test_a_limit_that_is_not_met_is_no_change_and_the_same_facts_are_the_same_history() -> None:
    assert len(status_history(status("False"), [], {}, {}).entries) == 1
    assert status_history(status(), [], {}, {}) == status_history(status(), [], {}, {})


def test_pods_with_strange_statuses_leave_the_rest_alone_and_many_stay_bounded() -> None:
    strange: list[dict[str, Any]] = [{}, {"status": 7}, pod("x", finishedAt=7), pod("y", finishedAt="yesterday")]
    assert len(status_history(status("False"), strange, {}, {}).entries) == 2
    many = [pod(f"chat-decode-{number}", finishedAt=AT.format(0), reason="x" * 999) for number in range(2_000)]
    assert len(encode_history(status_history(status(), many, {}, {}))) <= MAX_HISTORY_BYTES


def test_a_pass_announces_the_decision_that_it_has_just_made() -> None:
    announced: list[tuple[Key, DeploymentHistory]] = []

    async def main() -> None:
        world = World(promise=Promise(), rest=rest)
        world.start()
        await world.settle()
        assert world.runtime is not None
        reconciler = Reconciler(
            world.kube,
            world.runtime.caches,
            Installation(lambda: PLATFORM, lambda: MASTERS),
            now=lambda: wall(world.clock()),
            clock=world.clock,
            announce=lambda key, history: announced.append((key, history)),
        )
        world.user_edits("decode.replicas", {"min": 3, "max": 4})
        await world.settle()
        await reconciler.reconcile(Key(SPACE, NAME))
        await world.end()

    rest = serving()
    run_virtual(main())
    key, history = announced[-1]
    assert key == Key(SPACE, NAME)
    assert [change.text.partition(":")[0] for change in history.entries if change.subject == "decode"] == ["2 to 3"]
    assert history.wanted["decode"] == 3, "the page knows from it which workers are missing"
