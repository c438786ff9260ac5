"""Which flexible worker has which role: how many flip, which ones, and the orders to the workers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.hashes import Revision
from baton_control.rollout import Group, Wanted
from baton_control.telemetry.store import FlexibleWorker
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.roles import assign_roles, count_serving, flip_orders, sizes_after_flips
from baton_operator.passes.worker_pods import WorkerPod
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES, Role

T, OTHER = Revision("fit", "abc"), Revision("fit", "def")
P, D = Role.PREFILL, Role.DECODE


def wanted(prefill: int, decode: int, decode_revision: Revision = T) -> dict[Role, Wanted]:
    return {P: Wanted(T, prefill), D: Wanted(decode_revision, decode)}


def groups(prefill: int, decode: int, serving: tuple[int | None, int | None] | None = None) -> tuple[Group, ...]:
    first, second = (prefill, decode) if serving is None else serving
    return Group(P, T, prefill, first), Group(D, T, decode, second)


@pytest.mark.parametrize(
    ("have", "want", "sizes"),
    [
        (groups(2, 1), wanted(1, 2), {P: 1, D: 2}),
        (groups(1, 3), wanted(3, 1), {P: 3, D: 1}),
        (groups(3, 1), wanted(1, 2), {P: 2, D: 2}),
        (groups(2, 1), wanted(1, 4), {P: 1, D: 2}),
        (groups(3, 1, (1, 1)), wanted(1, 3), {P: 2, D: 2}),
    ],
    ids=["one", "two back", "one of which one more stops", "one of which two more start", "who serves alone"],
)
def test_who_is_too_many_in_one_pool_flips_to_the_other(
    have: tuple[Group, ...], want: dict[Role, Wanted], sizes: dict[Role, int]
) -> None:
    assert sizes_after_flips(want, have) == sizes


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (groups(2, 1), wanted(2, 2)),
        (groups(2, 2), wanted(1, 2)),
        (groups(2, 1, (None, None)), wanted(1, 2)),
        (groups(2, 1, (0, 1)), wanted(1, 2)),
        (groups(2, 1), wanted(1, 2, OTHER)),
        ((*groups(2, 1), Group(D, OTHER, 1, 1)), wanted(1, 2)),
    ],
    ids=["a start", "a stop", "unknown", "nobody serves", "two templates", "a rollout"],
)
def test_nobody_flips(have: tuple[Group, ...], want: dict[Role, Wanted]) -> None:
    assert sizes_after_flips(want, have) is None


def pod(name: str, role: Role = P, *, ready: bool = True, own: bool = True, **more: object) -> WorkerPod:
    """`own`: the operator gave it its role."""
    built = WorkerPod(f"uid-{name}", role, "abc", ready, False, name=name, created=name, is_assigned=own)
    return replace(built, **more)  # type: ignore[arg-type]


def roles(pods: list[WorkerPod], prefill: int, decode: int) -> dict[str, str]:
    assignments = assign_roles(pods, {P: prefill, D: decode})
    return {
        assignment.pod.name: "spare" if assignment.is_spare else assignment.role.value for assignment in assignments
    }


def test_a_flip_takes_the_youngest_that_is_ready() -> None:
    pods = [pod("a"), pod("b"), pod("c", ready=False), pod("d", D)]
    assert roles(pods, 2, 2) == {"a": "prefill", "b": "decode", "c": "prefill", "d": "decode"}


def test_a_new_pod_fills_what_is_left_and_moves_nobody() -> None:
    pods = [pod("a"), pod("b"), pod("c", own=False, ready=False), pod("d", D)]
    assert roles(pods, 2, 2) == {"a": "prefill", "b": "prefill", "c": "decode", "d": "decode"}
    assert roles(pods, 3, 1) == {"a": "prefill", "b": "prefill", "c": "prefill", "d": "decode"}


def test_the_pod_that_takes_a_lost_ones_place_gets_its_role() -> None:
    lost = pod("d", D, leaving=True)
    assert roles([pod("a"), pod("b", D), pod("c", own=False, ready=False), lost], 1, 2)["c"] == "decode"


def test_who_is_not_ready_goes_first_and_somebody_who_serves_flips_instead() -> None:
    pods = [pod("a"), pod("b"), pod("c", D), pod("d", D, ready=False)]
    assert roles(pods, 1, 2) == {"a": "prefill", "b": "decode", "c": "decode", "d": "spare"}


def test_of_those_that_serve_the_pool_that_has_too_many_gives_its_youngest() -> None:
    pods = [pod("a"), pod("b"), pod("c", D), pod("d", D)]
    assert roles(pods, 2, 1) == {"a": "prefill", "b": "prefill", "c": "decode", "d": "spare"}
    assert roles(pods, 1, 1) == {"a": "prefill", "b": "spare", "c": "decode", "d": "spare"}


def test_a_pod_is_no_spare_any_more_when_it_is_needed_again() -> None:
    pods = [pod("a"), pod("b", is_spare=True)]
    assignments = assign_roles(pods, {P: 2, D: 0})
    assert [assignment.is_new for assignment in assignments] == [False, True]
    assert [assignment.is_spare for assignment in assignments] == [False, False]


PODS = st.lists(
    st.tuples(st.sampled_from(POOL_ROLES), st.booleans(), st.booleans(), st.booleans(), st.booleans()), max_size=7
)


@given(PODS, st.integers(0, 4), st.integers(0, 4), st.randoms(use_true_random=False))
def test_roles_come_to_what_is_wanted_with_as_few_changes_as_that_takes(
    drawn: list[tuple[Role, bool, bool, bool, bool]], prefill: int, decode: int, rng: random.Random
) -> None:
    pods = [
        pod(str(number), role, ready=ready, own=own, is_spare=own and spare, leaving=leaving)
        for number, (role, ready, own, spare, leaving) in enumerate(drawn)
    ]
    sizes = {P: prefill, D: decode}
    assignments = assign_roles(pods, sizes)
    staying = [pod for pod in pods if not pod.leaving]
    assert {assignment.pod.uid for assignment in assignments} == {pod.uid for pod in staying}
    counts = Counter(assignment.role for assignment in assignments if not assignment.is_spare)
    assert sum(assignment.is_spare for assignment in assignments) == max(len(staying) - prefill - decode, 0)
    assert all(counts[role] <= sizes[role] for role in POOL_ROLES) or len(staying) < prefill + decode
    if len(staying) >= prefill + decode:
        assert counts == Counter({role: count for role, count in sizes.items() if count})
    for role in POOL_ROLES:  # nobody who was given a role leaves it but for a pool that lacks one
        left = [
            assignment
            for assignment in assignments
            if assignment.pod.is_assigned and assignment.pod.role is role is not assignment.role
        ]
        had = sum(
            assignment.pod.is_assigned and assignment.pod.role is role and not assignment.is_spare
            for assignment in assignments
        )
        assert len(left) <= max(had - sizes[role], 0)
    after = [
        replace(assignment.pod, role=assignment.role, is_spare=assignment.is_spare, is_assigned=True)
        for assignment in assignments
    ]
    rng.shuffle(after)
    assert not any(assignment.is_new for assignment in assign_roles(after, sizes)), (
        "a pass that is repeated changes nothing"
    )


def worker(host: str, epoch: bytes, role: Role, flip: int = 0) -> FlexibleWorker:
    return FlexibleWorker(host, epoch, role, flip)


def test_a_worker_whose_pod_says_another_role_is_told_under_the_next_number() -> None:
    pods = [pod("a", D, address="10.0.0.1"), pod("b", P, address="fd00::1")]
    reported = [worker("10.0.0.1", b"a", P, 4), worker("fd00:0::1", b"b", D, 7)]
    assert flip_orders(pods, reported) == (FlipOrder(b"a", 5, D), FlipOrder(b"b", 8, P))
    assert flip_orders(pods, [worker("10.0.0.1", b"a", D, 5)]) == ()


@pytest.mark.parametrize(
    "change",
    [{"is_assigned": False}, {"address": ""}, {"leaving": True}, {"address": "10.0.0.2"}],
    ids=["not given yet", "no address", "leaves", "somebody else"],
)
def test_nobody_else_is_told(change: dict[str, object]) -> None:
    there = replace(pod("a", D, address="10.0.0.1"), **change)  # type: ignore[arg-type]
    assert flip_orders([there], [worker("10.0.0.1", b"a", P)]) == ()


def test_only_who_serves_as_its_pod_says_counts_as_routable() -> None:
    parts = [WorkerSet("chat-flexible-abc", role, T, 2, 2, 2, False, is_flexible=True) for role in POOL_ROLES]
    pods = [pod("a", P, address="10.0.0.1"), pod("b", D, address="10.0.0.2"), pod("c", D, address="10.0.0.3")]
    reported = [worker("10.0.0.1", b"a", P), worker("10.0.0.2", b"b", P), worker("10.0.0.3", b"c", D)]
    plain = {(P, "old"): 2, (P, "abc"): 2, (D, "abc"): 1}
    assert count_serving(plain, parts, pods, reported) == {(P, "old"): 2, (P, "abc"): 1, (D, "abc"): 1}
    unlinked = [replace(flexible, is_routable=False) for flexible in reported]
    assert count_serving(plain, parts, pods, unlinked) == {(P, "old"): 2, (P, "abc"): 0, (D, "abc"): 0}
    fresh = [replace(pod, is_assigned=False) for pod in pods]
    assert count_serving(plain, parts, fresh, reported) == {(P, "old"): 2, (P, "abc"): 0, (D, "abc"): 0}
    assert count_serving(plain, (), pods, reported)[P, "old"] == 2
