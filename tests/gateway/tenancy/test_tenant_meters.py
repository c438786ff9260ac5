"""Limits by the minute: exact over a long time however requests are sized, and nothing is kept of an idle tenant."""

from __future__ import annotations

import random

import pytest

from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.tenant_meters import NOTHING, Charge, Cost, OverLimit, TenantMeters
from baton_gateway.tenancy.token_bucket import TokenBucket
from baton_wire.messages.operator_link import LimitMeasure, LimitShare
from baton_wire.tenant_table import TenantLimits


def tenant(name: str = "a", **limits: int) -> Tenant:
    return Tenant(name, name, limits=TenantLimits(**limits))


def test_a_minutes_worth_may_come_at_once_and_then_as_much_as_the_rate_brings() -> None:
    meters, owner = TenantMeters(), tenant(requests_per_minute=60)
    burst = [meters.charge(owner, Cost(1, 0, 0), 0.0) for _ in range(61)]
    assert [type(outcome) for outcome in burst] == [Charge] * 60 + [OverLimit]
    assert burst[-1] == OverLimit(LimitMeasure.REQUESTS, 60, 1.0)
    assert isinstance(meters.charge(owner, Cost(1, 0, 0), 1.0), Charge)
    assert isinstance(meters.charge(owner, Cost(1, 0, 0), 1.1), OverLimit)
    assert meters.remaining(owner, 1.1)[LimitMeasure.REQUESTS].remaining == 0
    assert meters.remaining(owner, 31.0)[LimitMeasure.REQUESTS].remaining == 30


@pytest.mark.parametrize("seed", range(5))
def test_tokens_are_exact_over_ten_minutes_though_answers_are_not_as_long_as_expected(seed: int) -> None:
    dice, meters, owner = random.Random(seed), TenantMeters(), tenant(output_tokens_per_minute=6_000)
    now, spent, open_charges = 0.0, 0.0, list[tuple[float, Charge, float]]()
    while now < 600:
        now += dice.expovariate(20)
        for entry in [entry for entry in open_charges if entry[0] <= now]:
            open_charges.remove(entry)
            meters.settle(entry[1], Cost(1, 0, entry[2]), now)
            spent += entry[2]
        charge = meters.charge(owner, Cost(1, 0, 50), now)
        if isinstance(charge, Charge):
            open_charges.append((now + dice.random() * 5, charge, dice.choice((1, 20, 200))))
    exact = 6_000 * 11
    assert 0.95 * exact <= spent <= 1.05 * exact


def test_a_request_larger_than_the_limit_is_let_through_full_and_repaid() -> None:
    meters, owner = TenantMeters(), tenant(input_tokens_per_minute=1_000)
    assert isinstance(meters.charge(owner, Cost(1, 5_000, 0), 0.0), Charge)
    refusal = meters.charge(owner, Cost(1, 1, 0), 0.0)
    assert isinstance(refusal, OverLimit)
    assert refusal.retry_after_s == pytest.approx(240.06)


def test_a_refused_request_takes_nothing_of_the_other_limits() -> None:
    meters, owner = TenantMeters(), tenant(requests_per_minute=10, input_tokens_per_minute=100)
    meters.charge(owner, Cost(1, 100, 0), 0.0)
    for _ in range(50):
        assert isinstance(meters.charge(owner, Cost(1, 50, 0), 0.0), OverLimit)
    assert meters.remaining(owner, 0.0)[LimitMeasure.REQUESTS].remaining == 9


def test_what_is_refused_for_others_is_given_back() -> None:
    meters, owner = TenantMeters(), tenant(requests_per_minute=2, output_tokens_per_minute=100)
    for _ in range(20):
        charge = meters.charge(owner, Cost(1, 0, 100), 0.0)
        assert isinstance(charge, Charge)
        meters.settle(charge, NOTHING, 0.0)


def test_a_clock_that_steps_back_by_an_hour_gives_nothing_and_takes_nothing() -> None:
    bucket = TokenBucket.full(60, 1.0, 3_600.0)
    bucket.take(60)
    bucket.refill(0.0)
    assert bucket.level == 0
    bucket.refill(30.0)
    assert bucket.level == pytest.approx(30)


def test_an_edited_limit_keeps_what_was_spent() -> None:
    meters = TenantMeters()
    for _ in range(5):
        meters.charge(tenant(requests_per_minute=10), Cost(1, 0, 0), 0.0)
    assert meters.remaining(tenant(requests_per_minute=20), 0.0)[LimitMeasure.REQUESTS].remaining == 15
    assert meters.remaining(tenant(requests_per_minute=4), 0.0)[LimitMeasure.REQUESTS].remaining == 0
    assert meters.remaining(tenant(), 0.0) == {}
    assert len(meters) == 0


def test_a_tenant_without_limits_has_no_meter_and_an_idle_one_loses_its_own() -> None:
    meters = TenantMeters()
    assert isinstance(meters.charge(tenant("free"), Cost(1, 1, 1), 0.0), Charge)
    assert len(meters) == 0
    for number in range(1_000):
        charge = meters.charge(tenant(f"t{number}", requests_per_minute=60), Cost(1, 0, 0), 0.0)
        assert isinstance(charge, Charge)
        meters.settle(charge, Cost(1, 0, 0), 0.0)
    for _ in range(1_000):
        meters.charge(tenant("other", requests_per_minute=1_000_000), Cost(1, 0, 0), 120.0)
    assert len(meters) <= 2


def test_a_request_that_outlasts_its_limits_is_settled_with_no_later_ones() -> None:
    meters, limited = TenantMeters(), tenant(output_tokens_per_minute=60)
    charge = meters.charge(limited, Cost(1, 0, 60), 0.0)
    assert isinstance(charge, Charge)
    meters.charge(tenant(), Cost(1, 0, 0), 0.0)  # the limits are lifted, and set again
    later = meters.charge(limited, Cost(1, 0, 60), 0.0)
    assert isinstance(later, Charge)
    meters.settle(charge, Cost(1, 0, 0), 0.0)
    assert meters.remaining(limited, 0.0)[LimitMeasure.OUTPUT].remaining == 0
    meters.settle(later, Cost(1, 0, 60), 0.0)
    for _ in range(4):
        meters.charge(tenant("other", requests_per_minute=60), Cost(1, 0, 0), 120.0)
    assert len(meters) == 1, "the idle meter goes"


def test_a_share_of_another_process_moves_tokens_without_losing_any() -> None:
    meters, owner = TenantMeters(0.5), tenant(requests_per_minute=100)
    assert sum(isinstance(meters.charge(owner, Cost(1, 0, 0), 0.0), Charge) for _ in range(60)) == 50
    meters.apply(LimitShare("a", LimitMeasure.REQUESTS, 0.9, 40), 0.0)
    assert sum(isinstance(meters.charge(owner, Cost(1, 0, 0), 0.0), Charge) for _ in range(60)) == 40
    [used] = meters.usage(0.0, 10)
    assert (used.wanted, used.level) == (120, 0)
    assert meters.usage(0.0, 10) == []


def test_more_limits_than_a_message_has_room_for_are_reported_in_turn() -> None:
    meters, owners = TenantMeters(), [tenant(f"t{number}", requests_per_minute=6_000) for number in range(10)]
    reported = list[str]()
    for second in range(4):
        for owner in owners:  # each one goes on, so none of them leaves room to those after it
            meters.charge(owner, Cost(1, 0, 0), float(second))
        reported += [use.tenant for use in meters.usage(float(second), 5)]
    assert sorted(reported) == sorted([owner.name for owner in owners] * 2)


def test_the_limits_of_a_tenant_that_do_not_fit_come_next_and_none_twice() -> None:
    meters = TenantMeters()
    meters.charge(tenant("a", requests_per_minute=60, input_tokens_per_minute=600), Cost(1, 10, 0), 0.0)
    first, second = meters.usage(0.0, 1), meters.usage(0.0, 1)
    assert {use.measure for use in first + second} == {LimitMeasure.REQUESTS, LimitMeasure.INPUT}
    assert meters.usage(0.0, 1) == []


def test_use_is_reported_though_the_limit_is_whole_again_before_the_report() -> None:
    meters, owners = TenantMeters(), [tenant(f"t{number}", requests_per_minute=60_000) for number in range(20)]
    for number, owner in enumerate(owners):
        charge = meters.charge(owner, Cost(1, 0, 0), number / 100)
        assert isinstance(charge, Charge)
        meters.settle(charge, charge.cost, number / 100)
    assert sum(use.wanted for use in meters.usage(0.5, 1_000)) == 20, "other arrivals did not sweep it away"
    for second in range(10):
        meters.charge(owners[0], Cost(1, 0, 0), 10.0 + second)
    assert len(meters) == 1


def test_without_reports_idle_meters_go_all_the_same() -> None:
    meters = TenantMeters()
    for number in range(1_000):
        charge = meters.charge(tenant(f"t{number}", requests_per_minute=60_000), Cost(1, 0, 0), number / 10)
        assert isinstance(charge, Charge)
        meters.settle(charge, charge.cost, number / 10)
    assert len(meters) < 100
