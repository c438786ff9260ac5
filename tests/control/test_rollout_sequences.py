"""Rollouts under everything that may happen between two steps: seeded sequences, and what each reason to hold means.

The whole campaign is `python -m campaigns.operator_proofs rollout`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from baton_control.hashes import Revision
from baton_control.rollout import Group, Limits, PoolChange, RolloutPhase, Step, Wanted, is_complete, next_step
from baton_testing.kube.rollout import BrokenPromiseError, Counts, Planner, RolloutWorld
from baton_wire.messages.values import POOL_ROLES, Role

OLD, NEW, OTHER = Revision("a", "old"), Revision("a", "new"), Revision("b", "other")
P, D = Role.PREFILL, Role.DECODE
CHUNKS, SEQUENCES = 4, 30
DesiredObject = dict[Role, Wanted]


def wanted(prefill: int, decode: int, revision: Revision = NEW) -> DesiredObject:
    return {P: Wanted(revision, prefill), D: Wanted(revision, decode)}


def fleet(**counts: int) -> tuple[Group, ...]:
    """`p_old=2, d_new=1`: all routable, the new ones younger."""
    groups = []
    for name, count in counts.items():
        revision = {"old": OLD, "new": NEW, "other": OTHER}[name[2:]]
        groups.append(Group({"p": P, "d": D}[name[0]], revision, count, count, since="1" if revision == OLD else "2"))
    return tuple(groups)


def after(groups: tuple[Group, ...], step: Step) -> tuple[Group, ...]:
    """The groups when the step is carried out and all that was started is routable."""
    counts = {(group.role, group.revision): group for group in groups}
    for change in step.changes:
        key = (change.role, change.revision)
        group = counts.get(key, Group(*key, 0, 0, since="2"))
        workers = group.workers + change.workers
        counts[key] = dataclasses.replace(group, workers=workers, routable=workers)
    return tuple(group for group in counts.values() if group.workers)


def rest(
    groups: tuple[Group, ...], goal: DesiredObject, limits: Limits, paused: bool = False
) -> tuple[str, RolloutPhase]:
    """Where the rollout comes to rest, and why."""
    for _ in range(100):
        step = next_step(goal, groups, limits, paused)
        if not step.changes:
            shown = sorted(f"{group.role[0]}_{group.revision.template}={group.workers}" for group in groups)
            return " ".join(shown), step.phase
        groups = after(groups, step)
    raise AssertionError("no rest")


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_sequence_of_events_breaks_a_promise(chunk: int) -> None:
    counts = Counts()
    for seed in range(chunk * SEQUENCES, (chunk + 1) * SEQUENCES):
        RolloutWorld(seed, counts).run()
    assert counts.sequences == SEQUENCES
    assert {phase.name for phase in RolloutPhase} <= set(counts.seen)


def test_a_canary_takes_its_share_and_the_rest_stays() -> None:
    limits = Limits(1, 0, canary=25)
    assert rest(fleet(p_old=4, d_old=8), wanted(4, 8), limits) == (
        "d_new=2 d_old=6 p_new=1 p_old=3",
        RolloutPhase.CANARY,
    )


def test_a_canary_of_a_single_worker_stands_beside_the_old_one_as_surge() -> None:
    assert rest(fleet(p_old=1, d_old=1), wanted(1, 1), Limits(1, 0, canary=10)) == (
        "d_new=1 d_old=1 p_new=1 p_old=1",
        RolloutPhase.CANARY,
    )
    assert rest(fleet(p_old=1, d_old=1), wanted(1, 1), Limits(0, 1, canary=10))[1] is RolloutPhase.COMPLETE


def test_a_canary_grows_and_shrinks_with_the_pool() -> None:
    held = fleet(p_old=3, p_new=1, d_old=3, d_new=1)
    limits = Limits(1, 0, canary=25)
    assert rest(held, wanted(8, 8), limits) == ("d_new=2 d_old=6 p_new=2 p_old=6", RolloutPhase.CANARY)
    assert rest(held, wanted(2, 2), limits) == ("d_new=1 d_old=1 p_new=1 p_old=1", RolloutPhase.CANARY)


def test_a_canary_goes_on_without_its_limit_and_back_without_a_stop() -> None:
    held = fleet(p_old=2, p_new=2, d_old=2, d_new=2)
    assert rest(held, wanted(4, 4), Limits(1, 0))[1] is RolloutPhase.COMPLETE
    assert rest(held, wanted(4, 4, OLD), Limits(1, 0, canary=50)) == ("d_old=4 p_old=4", RolloutPhase.COMPLETE)


def test_a_new_template_that_fails_stops_both_pools_and_the_old_one_keeps_serving() -> None:
    groups = (*fleet(p_old=3, d_old=4, d_new=1), Group(P, NEW, 2, 1, failing=True, since="2"))
    step = next_step(wanted(4, 4), groups, Limits(2, 0))
    assert (step.changes, step.phase) == ((), RolloutPhase.FAILING)


def test_capacity_follows_demand_with_the_old_template_while_the_new_one_fails() -> None:
    groups = (*fleet(p_old=3, d_old=3), Group(P, NEW, 1, 0, failing=True, since="2"), *fleet(d_new=1))
    step = next_step(wanted(6, 3), groups, Limits(1, 0))
    assert step.changes == (PoolChange(P, OLD, 3),)
    less = next_step(wanted(2, 3), groups, Limits(1, 0))
    assert PoolChange(P, OLD, -1) in less.changes
    assert all(change.workers < 0 for change in less.changes)


def test_leaving_a_failing_template_is_a_rollout_like_any_other() -> None:
    groups = (*fleet(p_old=4, d_old=4), Group(P, NEW, 1, 0, failing=True, since="2"))
    assert next_step(wanted(4, 4, OLD), groups, Limits(1, 0)).changes == (PoolChange(P, NEW, -1),)


def test_a_surge_that_no_node_has_room_for_waits_and_says_so() -> None:
    groups = (*fleet(p_old=2, d_old=2), Group(P, NEW, 1, 0, unschedulable=1), Group(D, NEW, 1, 0, unschedulable=1))
    step = next_step(wanted(2, 2), groups, Limits(1, 0))
    assert (step.changes, step.phase) == ((), RolloutPhase.UNSCHEDULABLE)


def test_a_pause_keeps_the_mix_and_follows_the_size() -> None:
    half = fleet(p_old=2, p_new=3, d_old=3, d_new=1)
    limits = Limits(1, 0)
    assert rest(half, wanted(4, 4), limits, paused=True) == ("d_new=1 d_old=3 p_new=3 p_old=2", RolloutPhase.PAUSED)
    assert rest(half, wanted(6, 2), limits, paused=True) == ("d_new=1 d_old=1 p_new=4 p_old=2", RolloutPhase.PAUSED)
    assert rest(fleet(p_old=1, d_old=1), wanted(3, 2), limits, paused=True)[0] == "d_old=2 p_old=3"


def test_a_pause_keeps_no_pool_asleep_and_no_new_deployment_from_starting() -> None:
    limits = Limits(1, 0)
    assert rest((), wanted(2, 3), limits, paused=True) == ("d_new=3 p_new=2", RolloutPhase.COMPLETE)
    asleep = tuple(dataclasses.replace(group, workers=0, routable=0) for group in fleet(p_old=1, d_old=1))
    assert rest(asleep, wanted(1, 1), limits, paused=True)[0] == "d_new=1 p_new=1"
    lost = (*fleet(d_old=2), Group(P, OLD, 0, 0))
    assert rest(lost, wanted(2, 2, OTHER), limits, paused=True) == ("d_old=2 p_old=2", RolloutPhase.PAUSED)


def test_pools_stay_in_proportion_while_another_model_takes_over() -> None:
    """4P:8D: a pair of pools that lost a quarter of its prefill workers would serve a quarter less."""
    groups, goal, limits = fleet(p_old=4, d_old=8), wanted(4, 8, OTHER), Limits(1, 0)
    while not is_complete(goal, groups):
        groups = after(groups, next_step(goal, groups, limits))
        have = {(group.role, group.revision.fit): group.workers for group in groups}
        assert sum(min(have.get((P, fit), 0) / 4, have.get((D, fit), 0) / 8) for fit in "ab") >= 1


def test_three_models_at_once_do_not_jam() -> None:
    """Full pools whose fits all need one another, and a worker of the wanted one that no partner has room for."""
    revisions = {name: Revision(name, name) for name in "abc"}
    groups = tuple(
        Group(role, revisions[name], count, count)
        for role, name, count in [(P, "a", 1), (P, "b", 2), (P, "c", 1), (D, "a", 1), (D, "b", 1)]
    )
    assert rest(groups, wanted(3, 1, revisions["c"]), Limits(1, 0)) == ("d_c=1 p_c=3", RolloutPhase.COMPLETE)


def test_ready_workers_are_not_given_up_because_nobody_has_counted_them_yet() -> None:
    """The operator has just begun, or a gateway has: old and new are ready, and none counts as routable."""
    groups = (
        *(Group(role, OLD, 1, 0, idle=0, since="1") for role in POOL_ROLES),
        *(Group(role, NEW, 1, 0, idle=0, since="2") for role in POOL_ROLES),
    )
    step = next_step(wanted(1, 1), groups, Limits(1, 0))
    assert (step.changes, step.phase) == ((), RolloutPhase.WAITING)
    crashed = tuple(dataclasses.replace(group, idle=1) if group.revision == OLD else group for group in groups)
    assert {change.workers for change in next_step(wanted(1, 1), crashed, Limits(1, 0)).changes} == {-1}


def _not_routable_is_idle(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    return next_step(goal, tuple(dataclasses.replace(group, idle=None) for group in groups), limits, paused)


def _without_floor(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    return next_step(goal, groups, Limits(limits.max_surge, limits.unavailable(1) + 1, limits.canary), paused)


def _with_more_surge(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    return next_step(goal, groups, Limits(limits.surge(1) + 1, limits.max_unavailable, limits.canary), paused)


def _unknown_is_all(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    known = tuple(
        dataclasses.replace(group, routable=group.workers) if group.routable is None else group for group in groups
    )
    return next_step(goal, known, limits, paused)


def _ready_is_routable(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    up = tuple(
        group if group.routable is None else dataclasses.replace(group, routable=group.workers) for group in groups
    )
    return next_step(goal, up, limits, paused)


def _fit_does_not_matter(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    names = {group.revision: Revision("x", str(group.revision)) for group in groups}
    names |= {pool.revision: Revision("x", str(pool.revision)) for pool in goal.values()}
    back = {new: old for old, new in names.items()}
    renamed = tuple(dataclasses.replace(group, revision=names[group.revision]) for group in groups)
    step = next_step({role: Wanted(names[p.revision], p.workers) for role, p in goal.items()}, renamed, limits, paused)
    return Step(tuple(PoolChange(c.role, back[c.revision], c.workers) for c in step.changes), step.reason, step.phase)


def _never_stops_at_a_failure(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    return next_step(goal, tuple(dataclasses.replace(group, failing=False) for group in groups), limits, paused)


def _without_pause(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    return next_step(goal, groups, limits)


def _without_canary(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    return next_step(goal, groups, Limits(limits.max_surge, limits.max_unavailable), paused)


def _never_removes(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    step = next_step(goal, groups, limits, paused)
    return Step(tuple(change for change in step.changes if change.workers > 0), step.reason, step.phase)


def _reverts_by_deleting(goal: DesiredObject, groups: tuple[Group, ...], limits: Limits, paused: bool) -> Step:
    """dynamo#13620: a revert half way takes the other template away at once."""
    step = next_step(goal, groups, limits, paused)
    exists = all(any(g.role is role and g.revision == goal[role].revision for g in groups) for role in POOL_ROLES)
    others = tuple(
        PoolChange(g.role, g.revision, -g.workers) for g in groups if g.workers and g.revision != goal[g.role].revision
    )
    return Step(others, step.reason, step.phase) if exists and others and not paused else step


FAULTS: tuple[Callable[..., Step], ...] = (
    *(_without_floor, _with_more_surge, _unknown_is_all, _ready_is_routable, _fit_does_not_matter),
    *(
        _not_routable_is_idle,
        _never_stops_at_a_failure,
        _without_pause,
        _without_canary,
        _never_removes,
        _reverts_by_deleting,
    ),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__.strip("_"))
def test_the_sequences_find_a_planner_that_is_wrong(fault: Planner) -> None:
    def finds(seed: int) -> bool:
        try:
            RolloutWorld(seed, Counts(), fault).run()
        except BrokenPromiseError:
            return True
        return False

    assert any(finds(seed) for seed in range(150))
