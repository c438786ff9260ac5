"""Which workers flip, and how orders are numbered, repeated and given up."""

from __future__ import annotations

import pytest

from baton_control.worker_specs import Device, Site
from baton_local.fleet.desired_processes import Fleet, SlotSpec, new_slots, plan_fleet
from baton_local.fleet.flipping import FlipsUnderWay, slots_to_flip
from baton_testing.kube.manifests import deployment
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES

SITE = Site("python3", "/model", "/keys", "file:/p", "file:/d", Device.CPU, Device.CPU)
POOL = {"replicas": {"min": 1, "max": 8}}
P, D = POOL_ROLES
ONE, TWO = b"1" * 16, b"2" * 16


def fleet(*, flips: bool = True, **changes: object) -> Fleet:
    return plan_fleet(deployment(prefill=POOL, decode=POOL, autoscaling={"flips": flips}, **changes), SITE)


def slots(planned: Fleet, prefill: int, decode: int) -> tuple[SlotSpec, ...]:
    revision = planned.templates[P].revision
    counts = zip(POOL_ROLES, (prefill, decode), strict=True)
    return tuple(
        slot
        for role, count in counts
        if count
        for slot in new_slots(planned, role, planned.templates[role].revision or revision, count, frozenset())
    )


def flipped(planned: Fleet, running: tuple[SlotSpec, ...], prefill: int, decode: int, idle: int = 0) -> list[str]:
    """Ordinals with their pools, of what flips when all but `idle` of each pool can be used; later ones are younger."""
    usable = frozenset(slot.name for slot in running if int(slot.name[-1]) >= idle)
    started = {slot.name: float(slot.name[-1]) for slot in running}
    chosen = slots_to_flip(planned, {P: prefill, D: decode}, running, usable, started)
    return [f"{'p' if '-prefill-' in slot.name else 'd'}{slot.name[-1]}>{role[0]}" for slot, role in chosen]


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ((1, 2), (2, 1), ["d1>p"]),
        ((3, 1), (1, 3), ["p2>d", "p1>d"]),
        ((3, 1), (2, 4), ["p2>d"]),
        ((3, 1), (1, 2), ["p2>d"]),
        ((2, 2), (2, 2), []),
        ((2, 2), (3, 2), []),
        ((2, 2), (1, 2), []),
        ((1, 1), (2, 2), []),
        ((2, 2), (1, 1), []),
    ],
)
def test_what_one_pool_lacks_and_the_other_has_too_much_flips(
    have: tuple[int, int], want: tuple[int, int], expected: list[str]
) -> None:
    planned = fleet()
    assert flipped(planned, slots(planned, *have), *want) == expected


def test_only_workers_that_gateways_can_use_flip() -> None:
    planned = fleet()
    running = slots(planned, 3, 1)
    assert flipped(planned, running, 1, 3, idle=2) == ["p2>d"]
    assert flipped(planned, running, 1, 3, idle=3) == []


def test_nobody_flips_where_it_is_not_allowed_or_while_templates_change() -> None:
    planned, plain = fleet(), fleet(flips=False)
    assert flipped(plain, slots(plain, 2, 1), 1, 2) == []
    other = fleet(model__servedName="other")
    assert flipped(other, slots(planned, 2, 1), 1, 2) == []


def test_orders_are_repeated_until_they_are_carried_out() -> None:
    flips = FlipsUnderWay()
    flips.begin("a", ONE, D, 0, 1.0)
    assert flips.orders == (FlipOrder(ONE, 1, D),)
    assert flips.follow({"a": ONE}, {}) == ()
    assert flips.follow({"a": ONE}, {ONE: 0}) == ()
    assert flips.orders == (FlipOrder(ONE, 1, D),)
    (done,) = flips.follow({"a": ONE}, {ONE: 1})
    assert (done.slot, done.role, done.since_s) == ("a", D, 1.0)
    assert not flips.orders


def test_a_later_order_has_a_higher_number_than_any_before_whoever_gave_it() -> None:
    flips = FlipsUnderWay()
    flips.begin("a", ONE, D, 7, 1.0)
    assert flips.orders == (FlipOrder(ONE, 8, D),)
    flips.begin("a", ONE, P, 7, 2.0)
    assert flips.orders == (FlipOrder(ONE, 9, P),), "the one before was not carried out yet, and is over"
    assert flips.follow({"a": ONE}, {ONE: 8}) == ()
    assert len(flips.follow({"a": ONE}, {ONE: 9})) == 1
    flips.begin("a", ONE, D, 0, 3.0)  # gateways that have just linked tell nothing yet
    assert flips.orders == (FlipOrder(ONE, 10, D),)


def test_an_order_ends_with_the_process_that_it_was_for() -> None:
    flips = FlipsUnderWay()
    flips.begin("a", ONE, D, 0, 1.0)
    flips.begin("b", TWO, D, 0, 1.0)
    assert flips.follow({"b": TWO}, {}) == ()
    assert flips.orders == (FlipOrder(TWO, 1, D),)
    assert flips.follow({"a": b"3" * 16, "b": b"4" * 16}, {TWO: 1}) == ()
    assert not flips.orders
