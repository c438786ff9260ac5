"""The sizes of pools in each mode, within bounds and budget; a switch of modes changes no size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.sizing.decision.scaling import Sized
from baton_control.spec.api import LLMDeployment, ScalingMode
from baton_control.worker_specs import pool_spec
from baton_operator.passes.pool_size import SCALER, Facade, is_foreign, last_sizes, plan_pools
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import POOL_ROLES, Role

P, D = Role.PREFILL, Role.DECODE
NONE = {P: None, D: None}
OURS = frozenset({SCALER})


def build_deployment(mode: str = "SLO", low: int = 1, high: int = 4, **fields: object) -> LLMDeployment:
    bounds = {"min": low, "max": high}
    return deployment(prefill__replicas=bounds, decode__replicas=bounds, autoscaling__mode=mode, **fields)


def facades(replicas: int, mode: str, owners: frozenset[str] | None = OURS) -> dict[Role, Facade]:
    return {role: Facade(replicas, owners, mode, written=2) for role in POOL_ROLES}


def sized(workers: int) -> Sized:
    return Sized(dict.fromkeys(POOL_ROLES, workers), dict.fromkeys(POOL_ROLES, "why"), holds=False)


@pytest.mark.parametrize("mode", ["SLO", "External", "Off"])
def test_a_new_deployment_starts_at_its_minimum(mode: str) -> None:
    first = last_sizes(build_deployment(mode, low=2), {}, NONE, {P: 0, D: 0})
    plan = plan_pools(build_deployment(mode, low=2), {}, first, sized(2) if mode == "SLO" else None)
    assert first == {P: 2, D: 2}
    assert [(pool.workers, pool.replicas) for pool in plan.values()] == [(2, 2), (2, 2)]


@pytest.mark.parametrize("mode", ["External", "Off"])
def test_whoever_scales_is_followed_within_the_bounds_and_never_written_over(mode: str) -> None:
    for asked, runs, says in ((3, 3, ""), (50, 4, "replicas.max 4"), (0, 1, "replicas.min 1")):
        live = facades(asked, mode, frozenset({"kubectl"}))
        plan = plan_pools(
            build_deployment(mode), live, last_sizes(build_deployment(mode), live, NONE, {P: 1, D: 1}), None
        )[D]
        assert (plan.workers, plan.replicas) == (runs, None)
        assert says in plan.limit


def test_in_mode_slo_the_decision_is_written_once() -> None:
    live = facades(2, "SLO", OURS)
    plan = plan_pools(build_deployment(), live, {P: 2, D: 2}, sized(3))
    assert (plan[D].workers, plan[D].replicas) == (3, 3)
    settled = {role: Facade(3, OURS, "SLO", written=3) for role in POOL_ROLES}
    assert plan_pools(build_deployment(), settled, {P: 3, D: 3}, sized(3))[D].replicas is None


def test_somebody_else_who_writes_in_mode_slo_is_neither_followed_nor_fought() -> None:
    live = facades(9, "SLO", frozenset({"kube-controller-manager"}))
    assert is_foreign(ScalingMode.SLO, live[D])
    before = last_sizes(build_deployment(), live, {P: 2, D: 2}, {P: 2, D: 2})
    assert before == {P: 2, D: 2}
    plan = plan_pools(build_deployment(), live, before, sized(2))[D]
    assert (plan.workers, plan.replicas, plan.foreign) == (2, None, frozenset({"kube-controller-manager"}))


def test_a_server_that_does_not_tell_owners_still_shows_that_somebody_wrote() -> None:
    assert is_foreign(ScalingMode.SLO, Facade(3, None, "SLO", written=2))
    assert is_foreign(ScalingMode.SLO, Facade(3, OURS, "SLO", written=2)), "1.20 does not see who used /scale"
    assert not is_foreign(ScalingMode.SLO, Facade(3, None, "SLO", written=3))
    assert not is_foreign(ScalingMode.SLO, Facade(3, None, "SLO")), "never written by Baton: it is taken over"
    plan = plan_pools(
        build_deployment(), {role: Facade(3, OURS, "SLO", 2) for role in POOL_ROLES}, {P: 2, D: 2}, sized(2)
    )[D]
    assert plan.foreign == {"somebody"}


@pytest.mark.parametrize("before", ["SLO", "External", "Off"])
@pytest.mark.parametrize("after", ["SLO", "External", "Off"])
def test_switching_modes_moves_nothing_by_itself(before: str, after: str) -> None:
    owners = OURS if before == "SLO" else frozenset({"kubectl"})
    live = {role: Facade(3, owners, before, written=3) for role in POOL_ROLES}
    now = last_sizes(build_deployment(after), live, {P: 3, D: 3}, {P: 3, D: 3})
    plan = plan_pools(build_deployment(after), live, now, sized(now[D]) if after == "SLO" else None)
    assert {role: pool.workers for role, pool in plan.items()} == {P: 3, D: 3}
    takes_over = after == "SLO" and before != "SLO"
    assert plan[D].replicas == (3 if takes_over else None), "the scaler becomes the owner, of the same number"


def test_taking_over_notes_the_number_even_where_the_server_does_not_tell_who_wrote_it() -> None:
    scaled = {role: Facade(2, OURS, "Off", written=1) for role in POOL_ROLES}
    plan = plan_pools(
        build_deployment(), scaled, last_sizes(build_deployment(), scaled, {P: 2, D: 2}, {P: 2, D: 2}), sized(2)
    )[D]
    assert (plan.workers, plan.replicas) == (2, 2)


def test_a_lost_facade_comes_back_with_what_was_published_and_else_with_what_runs() -> None:
    assert last_sizes(build_deployment("Off"), {}, {P: 3, D: 2}, {P: 4, D: 3}) == {P: 3, D: 2}, (
        "not with the surge of a rollout"
    )
    assert last_sizes(build_deployment("Off"), {}, NONE, {P: 4, D: 3}) == {P: 4, D: 3}
    plan = plan_pools(build_deployment("External"), {}, {P: 3, D: 2}, None)
    assert [pool.replicas for pool in plan.values()] == [3, 2]


def fitting(one: LLMDeployment, asked: dict[Role, int]) -> dict[Role, int]:
    return {role: plan.workers for role, plan in plan_pools(one, {}, asked, None).items()}


def test_the_budget_takes_from_the_pool_with_most_to_spare() -> None:
    gpu = {"resource": "nvidia.com/gpu"}
    one = build_deployment(
        "Off", 1, 16, prefill__accelerator=gpu, decode__accelerator=gpu, autoscaling__budget={"maxAccelerators": 6}
    )
    assert fitting(one, {P: 2, D: 8}) == {P: 2, D: 4}
    live = {P: Facade(2, OURS, "Off"), D: Facade(8, OURS, "Off")}
    plan = plan_pools(one, live, {P: 2, D: 8}, None)
    assert "maxAccelerators 6" in plan[D].limit
    assert plan[P].limit == ""


@given(st.integers(0, 20), st.integers(0, 20), st.integers(2, 40), st.integers(1, 8), st.integers(1, 8))
def test_the_budget_holds_unless_the_minimum_forbids_it(p: int, d: int, budget: int, low: int, width: int) -> None:
    gpu, bounds = {"resource": "nvidia.com/gpu"}, {"min": 1, "max": 20}
    one = deployment(
        prefill={"replicas": bounds, "accelerator": gpu},
        decode={"replicas": bounds, "accelerator": gpu},
        autoscaling={"mode": "Off", "budget": {"maxAccelerators": max(budget, low + width)}},
    )
    degrees = {"prefill": low, "decode": width}  # those of workers whose ranks compute on accelerators
    pools = {
        role.value: pool_spec(one, role).model_copy(update={"tensor_parallel": degrees[role.value]})
        for role in POOL_ROLES
    }
    one = one.model_copy(update={"spec": one.spec.model_copy(update=pools)})
    asked = {P: max(p, 1), D: max(d, 1)}
    left = fitting(one, asked)
    assert all(1 <= left[role] <= asked[role] for role in POOL_ROLES)
    taken = left[P] * low + left[D] * width
    assert taken <= max(budget, low + width)
    for role, size in ((P, low), (D, width)):
        if left[role] < asked[role]:
            assert taken + max(low, width) > max(budget, low + width) or taken + size > budget, (
                "no more is cut than needed"
            )
