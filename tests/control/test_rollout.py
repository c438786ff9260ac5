"""The rollout planner: whole sequences of steps, and what holds after every step of any rollout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.hashes import Revision
from baton_control.rollout import Group, Limits, RolloutPhase, Step, Wanted, is_complete, next_step, usable
from baton_wire.messages.values import POOL_ROLES, Role

OLD, NEW = Revision("fit-a", "one"), Revision("fit-a", "two")
OTHER_MODEL = Revision("fit-b", "three")
P, D = Role.PREFILL, Role.DECODE


@dataclass(frozen=True)
class Fleet:
    """Workers by role and revision; what is started becomes routable at once unless told otherwise."""

    groups: tuple[Group, ...] = ()

    @staticmethod
    def of(counts: dict[tuple[Role, Revision], int], routable: bool = True) -> Fleet:
        return Fleet(tuple(Group(r, v, n, n if routable else None) for (r, v), n in counts.items() if n))

    def counts(self) -> dict[tuple[Role, Revision], int]:
        return {(group.role, group.revision): group.workers for group in self.groups}

    def after(self, step: Step) -> Fleet:
        counts = self.counts()
        for change in step.changes:
            key = (change.role, change.revision)
            counts[key] = counts.get(key, 0) + change.workers
        return Fleet.of(counts)


def wanted(prefill: int, decode: int, revision: Revision) -> dict[Role, Wanted]:
    return {P: Wanted(revision, prefill), D: Wanted(revision, decode)}


def run(fleet: Fleet, goal: dict[Role, Wanted], limits: Limits) -> list[Fleet]:
    """The fleet after each step until the planner is done or waits."""
    seen = [fleet]
    for _ in range(200):
        step = next_step(goal, fleet.groups, limits)
        if not step.changes:
            return seen
        fleet = fleet.after(step)
        seen.append(fleet)
    raise AssertionError("the planner does not come to an end")


def shown(fleet: Fleet) -> str:
    """`P one:1 two:1 | D …`, for readable sequences."""
    return " | ".join(
        f"{name} " + " ".join(f"{g.revision.template}:{g.workers}" for g in fleet.groups if g.role is role)
        for name, role in (("P", P), ("D", D))
    )


def test_a_fresh_deployment_starts_everything_at_once() -> None:
    assert [shown(f) for f in run(Fleet(), wanted(2, 3, NEW), Limits(1, 0))][-1] == "P two:2 | D two:3"
    assert len(run(Fleet(), wanted(2, 3, NEW), Limits(1, 0))) == 2


def test_a_template_change_goes_one_surge_at_a_time() -> None:
    fleet = Fleet.of({(P, OLD): 2, (D, OLD): 2})
    assert [shown(f) for f in run(fleet, wanted(2, 2, NEW), Limits(1, 0))] == [
        "P one:2 | D one:2",
        "P one:2 two:1 | D one:2 two:1",  # surge in both pools
        "P one:1 two:1 | D one:1 two:1",  # one old one less each
        "P one:1 two:2 | D one:1 two:2",
        "P two:2 | D two:2",
    ]


def test_another_model_never_leaves_a_pool_without_partner() -> None:
    fleet = Fleet.of({(P, OLD): 1, (D, OLD): 1})
    for step in run(fleet, wanted(1, 1, OTHER_MODEL), Limits(1, 0)):
        assert min(usable(step.groups).values()) >= 1
    assert shown(run(fleet, wanted(1, 1, OTHER_MODEL), Limits(1, 0))[-1]) == "P three:1 | D three:1"


def test_a_model_that_was_changed_again_during_its_rollout_replaces_both_former_ones() -> None:
    """Three models cannot all keep their share of the pairs: the smallest goes as a whole."""
    third = Revision("fit-c", "four")
    fleet = Fleet.of({(P, OLD): 1, (P, OTHER_MODEL): 1, (P, third): 2, (D, OLD): 1, (D, OTHER_MODEL): 1, (D, third): 1})
    steps = [shown(step) for step in run(fleet, wanted(3, 2, third), Limits(1, 0))]
    assert steps[1] == "P three:1 four:2 | D three:1 four:1"
    assert steps[-1] == "P four:3 | D four:2"


def test_nothing_is_removed_while_routable_is_unknown() -> None:
    fleet = Fleet.of({(P, OLD): 2, (D, OLD): 2, (P, NEW): 2, (D, NEW): 2}, routable=False)
    step = next_step(wanted(2, 2, NEW), fleet.groups, Limits(1, 0))
    assert (step.changes, step.phase) == ((), RolloutPhase.UNKNOWN)


def test_workers_that_never_got_ready_make_room_for_the_template_that_mends_them_though_routable_is_unknown() -> None:
    third = Revision("fit-c", "four")

    def changes(ready_old: int, ready_new: int) -> list[tuple[Role, Revision, int]]:
        groups = tuple(
            group
            for role in (P, D)
            for group in (
                Group(role, OLD, 2, None, idle=2 - ready_old),
                Group(role, NEW, 1, None, idle=1 - ready_new),
            )
        )
        step = next_step(wanted(2, 2, third), groups, Limits(1, 0))
        return [(change.role, change.revision, change.workers) for change in step.changes]

    assert changes(2, 0) == [(P, NEW, -1), (D, NEW, -1)]
    assert changes(2, 1) == [], "a ready worker may serve"
    assert changes(1, 0) == [], "the others are under the floor"
    assert changes(0, 1) == [], "both kinds may be needed"


def test_the_last_partners_of_ready_workers_do_not_go_while_routable_is_unknown() -> None:
    """A former gateway may still use them, though they are not ready at the moment."""
    groups = (
        Group(P, OLD, 1, None, idle=1),
        Group(P, OTHER_MODEL, 2, None, idle=0),
        Group(D, OLD, 1, None, idle=0),
        Group(D, OTHER_MODEL, 2, None, idle=1),
    )
    step = next_step(wanted(2, 2, OTHER_MODEL), groups, Limits(1, 0))
    assert (step.changes, step.phase) == ((), RolloutPhase.UNKNOWN)


def test_a_new_template_that_never_becomes_routable_keeps_the_old_one_serving() -> None:
    groups = (Group(P, OLD, 2, 2), Group(D, OLD, 2, 2), Group(P, NEW, 1, 0), Group(D, NEW, 1, 0))
    assert next_step(wanted(2, 2, NEW), groups, Limits(1, 0)).changes == ()


def test_workers_that_serve_nothing_are_removed_first() -> None:
    groups = (Group(P, OLD, 3, 1), Group(D, OLD, 1, 1))
    step = next_step(wanted(1, 1, OLD), groups, Limits(1, 0))
    assert [(change.role, change.workers) for change in step.changes] == [(P, -2)]


def test_a_revert_half_way_uses_what_is_still_there() -> None:
    half = Fleet.of({(P, OLD): 1, (P, NEW): 2, (D, OLD): 1, (D, NEW): 2})
    assert shown(run(half, wanted(2, 2, OLD), Limits(1, 0))[-1]) == "P one:2 | D one:2"


def test_paused_means_no_step_where_something_runs() -> None:
    groups = (Group(P, OLD, 1, 1), Group(D, OLD, 1, 1))
    assert next_step(wanted(1, 1, NEW), groups, Limits(1, 0), paused=True).changes == ()


COUNTS = st.integers(0, 6)
REVISIONS = st.sampled_from([OLD, NEW, OTHER_MODEL])
FLEETS = st.dictionaries(st.tuples(st.sampled_from(POOL_ROLES), REVISIONS), COUNTS, max_size=6).map(Fleet.of)
GOALS = st.builds(wanted, st.integers(1, 6), st.integers(1, 6), REVISIONS)
AMOUNTS = st.one_of(st.integers(0, 3), st.sampled_from(["0%", "1%", "25%", "34%", "100%"]))
LIMITS = (
    st.tuples(AMOUNTS, AMOUNTS).filter(lambda pair: not {*pair} <= {0, "0%"}).map(lambda pair: Limits(pair[0], pair[1]))
)


@given(FLEETS, GOALS, LIMITS)
def test_every_rollout_ends_and_keeps_floor_and_surge(fleet: Fleet, goal: dict[Role, Wanted], limits: Limits) -> None:
    seen = run(fleet, goal, limits)
    assert is_complete(goal, seen[-1].groups), shown(seen[-1])
    for before, after in pairwise(seen):
        floors = {role: pool.workers - limits.unavailable(pool.workers) for role, pool in goal.items()}
        partners = frozenset(role for role in POOL_ROLES if floors[role] > 0)
        now, then = usable(before.groups, partners), usable(after.groups, partners)
        for role in POOL_ROLES:
            total = sum(group.workers for group in after.groups if group.role is role)
            was = sum(group.workers for group in before.groups if group.role is role)
            assert total <= max(goal[role].workers + limits.surge(goal[role].workers), was)
            assert then[role] >= min(floors[role], now[role])


@pytest.mark.parametrize(
    ("surge", "unavailable", "workers", "resolved"),
    [
        ("25%", 0, 10, (3, 0)),
        ("25%", "25%", 10, (3, 2)),
        ("0%", "25%", 10, (0, 2)),
        (0, "25%", 3, (0, 1)),
        ("100%", "0%", 3, (3, 0)),
        (2, 1, 100, (2, 1)),
    ],
)
def test_a_percentage_is_of_the_pool_as_in_a_deployment(
    surge: int | str, unavailable: int | str, workers: int, resolved: tuple[int, int]
) -> None:
    limits = Limits(surge, unavailable)
    assert (limits.surge(workers), limits.unavailable(workers)) == resolved


def test_without_surge_a_single_worker_is_stopped_before_it_is_replaced() -> None:
    fleet = Fleet.of({(P, OLD): 2, (D, OLD): 1})
    assert [shown(f) for f in run(fleet, wanted(2, 1, NEW), Limits(0, 1))] == [
        "P one:2 | D one:1",
        "P one:1 | D ",
        "P one:1 two:1 | D two:1",
        "P two:1 | D two:1",
        "P two:2 | D two:1",
    ]


@pytest.mark.parametrize("unavailable", [1, 2])
def test_without_surge_the_old_ones_go_first(unavailable: int) -> None:
    fleet = Fleet.of({(P, OLD): 3, (D, OLD): 3})
    seen = run(fleet, wanted(3, 3, NEW), Limits(0, unavailable))
    assert shown(seen[1]) == f"P one:{3 - unavailable} | D one:{3 - unavailable}"
    assert shown(seen[-1]) == "P two:3 | D two:3"
