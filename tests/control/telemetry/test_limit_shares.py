"""Limits over several gateway processes: at most 5 % over and 5 % under, with uneven load that moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from baton_control.telemetry.limit_shares import FORGET_S, LimitShares
from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.tenant_meters import Charge, Cost, TenantMeters
from baton_wire.messages.operator_link import LimitMeasure, LimitShare, LimitUse
from baton_wire.tenant_table import TenantLimits

PROCESSES = [bytes([number]) * 16 for number in range(4)]
LIMIT = 1_200
TENANT = Tenant("a", "a", limits=TenantLimits(requests_per_minute=LIMIT))
Weights = Callable[[float], tuple[float, ...]]

EVEN: Weights = lambda now: (1, 1, 1, 1)  # noqa: E731
ONE: Weights = lambda now: (1, 0, 0, 0)  # noqa: E731
UNEVEN: Weights = lambda now: (70, 20, 9, 1)  # noqa: E731
MOVING: Weights = lambda now: tuple(1.0 if int(now / 60) % 4 == place else 0.05 for place in range(4))  # noqa: E731


def admitted(
    weights: Weights, per_s: float, seconds: float, seed: int, link_from_s: float = 0.0, link_until_s: float = 1e9
) -> int:
    """Requests that four processes let in together. Reports and orders are each late by up to half a second."""
    dice, shares = random.Random(seed), LimitShares()
    meters = {process: TenantMeters(0.25) for process in PROCESSES}
    late: list[tuple[float, Callable[[], None]]] = []
    for process in PROCESSES:
        shares.join(process)
    now, next_round, count = 0.0, 1.0, 0
    carried_out = dict.fromkeys(PROCESSES, 0)

    def report(process: bytes, at_s: float) -> None:
        uses = meters[process].usage(at_s, 1_000)
        number = carried_out[process]
        late.append((at_s + dice.random() / 2, lambda: shares.report(process, uses, number, at_s)))

    def order(at_s: float) -> None:
        for process, changes in shares.divide(at_s).items():
            late.append((at_s + dice.random() / 2, partial(carry_out, process, changes, shares.number(process))))

    def carry_out(process: bytes, changes: list[LimitShare], number: int) -> None:
        carried_out[process] = number
        for change in changes:
            meters[process].apply(change, now)

    while now < seconds:
        now += dice.expovariate(per_s)
        for entry in [entry for entry in late if entry[0] <= now]:
            late.remove(entry)
            entry[1]()
        if now >= next_round and link_from_s <= now < link_until_s:
            next_round = now + 1.0
            for process in PROCESSES:
                report(process, now)
            order(now)
        [process] = dice.choices(PROCESSES, weights(now))
        charge = meters[process].charge(TENANT, Cost(1, 0, 0), now)
        if isinstance(charge, Charge):
            meters[process].settle(charge, charge.cost, now)
            count += 1
    return count


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", [EVEN, ONE, UNEVEN, MOVING], ids=["even", "one", "uneven", "moving"])
def test_four_processes_are_within_five_percent_of_the_limit(weights: Weights, seed: int) -> None:
    minutes = 8
    exact = LIMIT * (minutes + 1)
    assert 0.95 * exact <= admitted(weights, 60.0, minutes * 60, seed) <= 1.05 * exact


def test_below_the_limit_hardly_anything_is_refused() -> None:
    asked_per_s = 0.9 * LIMIT / 60
    assert admitted(UNEVEN, asked_per_s, 480, 1) >= 0.97 * asked_per_s * 480


@pytest.mark.parametrize("weights", [EVEN, ONE, UNEVEN], ids=["even", "one", "uneven"])
def test_without_the_operator_each_goes_on_at_its_last_share(weights: Weights) -> None:
    exact = LIMIT * 9
    assert 0.95 * exact <= admitted(weights, 60.0, 480, 2, link_until_s=60) <= 1.05 * exact


def use(wanted: float, level: float, limit: float = 8) -> list[LimitUse]:
    return [LimitUse("a", LimitMeasure.CONCURRENT, limit, wanted, level)]


@pytest.mark.parametrize("seed", range(20))
def test_concurrent_sequences_never_exceed_the_limit_and_go_to_where_they_are_wanted(seed: int) -> None:
    dice, shares, limit = random.Random(seed), LimitShares(), random.Random(seed).choice((4, 8, 33))
    slots = {process: limit // 4 for process in PROCESSES}
    carried_out, late = dict.fromkeys(PROCESSES, 0), list[tuple[int, bytes, int, int]]()
    running, demand = dict.fromkeys(PROCESSES, 0), dict.fromkeys(PROCESSES, 0)
    for process in PROCESSES:
        shares.join(process)
    for step in range(200):
        if step % 40 == 0:
            demand = {process: dice.choice((0, 1, limit)) for process in PROCESSES}
        for process in PROCESSES:
            ended = dice.randint(0, running[process])
            running[process] = max(0, running[process] - ended)
            running[process] = max(running[process], min(slots[process], demand[process]))
        assert sum(running.values()) <= limit
        for process in PROCESSES:
            uses = use(max(demand[process], running[process]), running[process], limit)
            shares.report(process, uses, carried_out[process], float(step))
        for process, changes in shares.divide(float(step)).items():
            late.append((step + dice.choice((0, 0, 1)), process, int(changes[-1].share), shares.number(process)))
        for _, process, share, number in [entry for entry in late if entry[0] <= step]:
            slots[process], carried_out[process] = share, number
        late = [entry for entry in late if entry[0] > step]
        if step % 40 > 30:
            assert sum(running.values()) >= min(limit, sum(demand.values())) - 1


def test_a_process_that_is_gone_leaves_its_share_to_the_others_and_an_idle_limit_is_forgotten() -> None:
    shares = LimitShares()
    for process in PROCESSES[:2]:
        shares.join(process)
        shares.report(process, [LimitUse("a", LimitMeasure.REQUESTS, 60, 10, 0)], 0, 0.0)
    assert {round(change.share, 2) for changes in shares.divide(0.0).values() for change in changes} == {0.5}
    shares.leave(PROCESSES[0])
    shares.report(PROCESSES[1], [LimitUse("a", LimitMeasure.REQUESTS, 60, 10, 0)], 1, 1.0)
    [[change]] = shares.divide(1.0).values()
    assert change.share == pytest.approx(1.0)
    assert len(shares) == 1
    shares.divide(FORGET_S + 2)
    assert len(shares) == 0
