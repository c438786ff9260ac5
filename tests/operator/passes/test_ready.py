"""Ready means that a request would be answered, in every world; readers such as kstatus come to the same verdict."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from baton_control.hashes import Revision
from baton_control.rollout import REASONS, Group, RolloutPhase, Step
from baton_operator.passes.deployment_status import status_of
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pass_result import PassResult
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.problems import WORST, PassProblem
from baton_operator.schema.status import DeploymentStatus
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import POOL_ROLES, Role

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
MODES = {mode: deployment(autoscaling__mode=mode) for mode in ("SLO", "External", "Off")}
ENDS_ALONE = ("Replacing", "QueuedByKueue", "SchedulingGated", "FetchingModel", "PullingImage", "ContainerCreating")
REASONS_OF_ALL = sorted(reason for line in WORST for reason in line if reason != "NoGateway")


@dataclass(frozen=True, slots=True)
class Worker:
    role: Role
    fit: str
    template: str
    is_routable: bool


problems = st.builds(
    lambda reason, of: PassProblem(reason, f"{of or 'all'}: it is {reason}", reason not in ENDS_ALONE, of),
    st.sampled_from(REASONS_OF_ALL),
    st.sampled_from(["", "prefill", "decode", "gateway", "fetch"]),
)
workers = st.lists(
    st.builds(Worker, st.sampled_from(POOL_ROLES), st.sampled_from("ab"), st.sampled_from("xyz"), st.booleans()),
    max_size=8,
)


def view(  # noqa: PLR0913 - one named argument for each fact that a row changes
    running: list[Worker], known: bool, gateways: int, sizes: tuple[int, int], mode: str, phase: RolloutPhase,
    reported: list[PassProblem], is_reachable: bool | None, wakes: bool | None,
) -> PassResult:  # fmt: skip
    keys = sorted({(worker.role, worker.fit, worker.template) for worker in running})
    groups, sets = [], []
    for role, fit, template in keys:
        mine = [worker for worker in running if (worker.role, worker.fit, worker.template) == (role, fit, template)]
        count, revision = sum(worker.is_routable for worker in mine), Revision(fit, template)
        groups.append(Group(role, revision, len(mine), count if known else None))
        sets.append(WorkerSet(f"chat-{role}-{fit}{template}", role, revision, len(mine), len(mine), count, False))
    return PassResult(
        deployment=MODES[mode],
        generation=1,
        wanted=dict.fromkeys(POOL_ROLES, Revision("a", "x")),
        plans={role: PoolPlan(size, None) for role, size in zip(POOL_ROLES, sizes, strict=True)},
        sized=None,
        sets=tuple(sets),
        groups=tuple(groups),
        step=Step((), REASONS[phase], phase),
        gateways_ready=gateways,
        report=None,
        problems=tuple(reported),
        is_reachable=is_reachable,
        wakes=wakes,
    )


def answers(
    running: list[Worker], known: bool, gateways: int, sizes: tuple[int, int], mode: str, is_reachable: bool | None,
    wakes: bool | None,
) -> bool | None:  # fmt: skip
    """True if a request would be answered, counted worker by worker; None: unknown."""
    if gateways == 0 or is_reachable is False:
        return False
    if sizes == (0, 0):
        return wakes if mode == "SLO" else False
    if not known and running:
        return None
    serves = any(
        p.is_routable and d.is_routable and p.fit == d.fit
        for p in running
        for d in running
        if (p.role, d.role) == (Role.PREFILL, Role.DECODE)
    )
    return None if serves and is_reachable is None else serves


def kstatus(status: DeploymentStatus) -> str:
    """The status that kstatus computes from the conditions of an unknown kind (its `GetStatus`)."""
    truth = {condition.type: condition.status for condition in status.conditions}
    if truth.get("Reconciling") == "True":
        return "InProgress"
    if truth.get("Stalled") == "True":
        return "Failed"
    return "Current" if truth.get("Ready", "True") == "True" else "InProgress"


@settings(max_examples=600)
@given(
    workers,
    st.booleans(),
    st.integers(0, 2),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.sampled_from(sorted(MODES)),
    st.sampled_from(list(RolloutPhase)),
    st.lists(problems, max_size=4),
    st.sampled_from([True, True, False, None]),
    st.sampled_from([True, False, None]),
)
def test_ready_is_whether_a_request_would_be_answered(  # noqa: PLR0913 - columns of the table
    running: list[Worker], known: bool, gateways: int, sizes: tuple[int, int], mode: str, phase: RolloutPhase,
    reported: list[PassProblem], is_reachable: bool | None, wakes: bool | None,
) -> None:  # fmt: skip
    seen = view(running, known, gateways, sizes, mode, phase, reported, is_reachable, wakes)
    status = status_of(seen, DeploymentStatus(), NOW)
    truth = {condition.type: condition for condition in status.conditions}
    truth_of = answers(running, known, gateways, sizes, mode, is_reachable, wakes)
    expected = {True: "True", False: "False", None: "Unknown"}[truth_of]
    assert truth["Ready"].status == truth["Available"].status == expected

    lasting = {problem.reason for problem in reported if problem.lasts}
    stuck = phase in (RolloutPhase.UNSCHEDULABLE, RolloutPhase.FAILING)
    assert truth["Stalled"].status == truth["Degraded"].status == str(bool(lasting) or stuck)
    assert (kstatus(status) == "Failed") == (bool(lasting) or stuck)
    assert not (truth["Stalled"].status == truth["Reconciling"].status == "True")
    if expected != "True" and truth["Stalled"].status == "False":
        nobody_wakes = sizes == (0, 0) and (mode != "SLO" or wakes is False) and gateways > 0
        held = phase in (RolloutPhase.PAUSED, RolloutPhase.CANARY)
        assert nobody_wakes or held or kstatus(status) == "InProgress"
    assert status.summary
    for condition in status.conditions:
        assert condition.message
        assert "['" not in condition.message


def test_a_deployment_that_only_embeds_is_ready_without_a_decode_worker() -> None:
    one = deployment(model__tasks=["Embed"])
    running = [Worker(Role.PREFILL, "a", "x", is_routable=True)]
    for workers_of, expected in ((running, "True"), ([], "False")):
        seen = view(workers_of, True, 1, (1, 0), "SLO", RolloutPhase.COMPLETE, [], True, True)
        status = status_of(replace(seen, deployment=one), DeploymentStatus(), NOW)
        available = next(condition for condition in status.conditions if condition.type == "Available")
        assert available.status == expected, available.message
