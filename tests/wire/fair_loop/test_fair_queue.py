"""Time is shared by weight whatever items cost, in order within an account, and no account waits for ever."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from baton_wire.fair_loop.fair_queue import Account, FairQueue

Item = tuple[str, int]


def serve(
    costs: dict[str, float], weights: dict[str, float], rounds: int, services: frozenset[str] = frozenset()
) -> dict[str, float]:
    """The time of each account, all of which always have an item. Costs are drawn around their means."""
    queue: FairQueue[str] = FairQueue()
    accounts = {name: Account[str](name, weights[name], name in services) for name in costs}
    spent = dict.fromkeys(costs, 0.0)
    draw = random.Random(str(sorted(costs.items())))
    for name, account in accounts.items():
        queue.add(account, name)
        queue.add(account, name)
    for _ in range(rounds):
        name = queue.take()
        cost_s = costs[name] * draw.uniform(0.5, 1.5)
        queue.charge(cost_s)
        spent[name] += cost_s
        queue.add(accounts[name], name)
    for name, account in accounts.items():
        assert account.spent_s == pytest.approx(spent[name])
    return spent


@pytest.mark.parametrize(
    ("costs", "weights"),
    [
        ({"dear": 0.05, "cheap": 0.0001}, {"dear": 1.0, "cheap": 1.0}),
        ({"a": 0.001, "b": 0.001, "c": 0.001}, {"a": 1.0, "b": 2.0, "c": 4.0}),
        ({"dear": 0.01, "cheap": 0.0002, "heavy": 0.003}, {"dear": 0.5, "cheap": 1.0, "heavy": 3.0}),
    ],
)
def test_accounts_share_time_by_weight_within_5_percent(costs: dict[str, float], weights: dict[str, float]) -> None:
    spent = serve(costs, weights, 40_000)
    total, weight = sum(spent.values()), sum(weights.values())
    for name in costs:
        assert spent[name] / total == pytest.approx(weights[name] / weight, rel=0.05), name


@pytest.mark.parametrize("tenants", [1, 3, 30])
def test_a_service_has_as_much_as_all_other_accounts_together(tenants: int) -> None:
    names = [f"tenant {number}" for number in range(tenants)]
    spent = serve(
        {name: 0.001 for name in names} | {"service": 0.004},
        {name: 0.3 for name in names} | {"service": 1.0},
        20_000,
        frozenset({"service"}),
    )
    assert spent["service"] / sum(spent.values()) == pytest.approx(0.5, rel=0.05)


def test_items_of_an_account_keep_their_order() -> None:
    queue: FairQueue[Item] = FairQueue()
    accounts = {name: Account[Item](name) for name in "abc"}
    draw = random.Random(1)
    last = dict.fromkeys(accounts, 0)
    taken = dict.fromkeys(accounts, 0)
    for _ in range(5_000):
        name = draw.choice("abc")
        last[name] += 1
        queue.add(accounts[name], (name, last[name]))
        if draw.random() < 0.8:
            served, number = queue.take()
            queue.charge(draw.uniform(0.0, 0.01))
            taken[served] += 1
            assert number == taken[served]
    while queue:
        served, number = queue.take()
        queue.charge(0.001)
        taken[served] += 1
        assert number == taken[served]
    assert taken == last


def test_an_account_that_was_idle_goes_next_and_has_saved_up_nothing() -> None:
    queue: FairQueue[str] = FairQueue()
    busy, idle = Account[str]("busy"), Account[str]("idle")
    for _ in range(200):
        queue.add(busy, "busy")
    for _ in range(100):
        queue.take()
        queue.charge(0.01)
    for _ in range(20):
        queue.add(idle, "idle")
    order = []
    for _ in range(20):
        order.append(queue.take())
        queue.charge(0.01)
    assert order[0] == "idle"
    assert Counter(order) == {"idle": 10, "busy": 10}, "a second of doing nothing is no credit"


def test_an_item_that_took_long_is_paid_back_before_its_account_goes_again() -> None:
    queue: FairQueue[str] = FairQueue()
    slow, quick = Account[str]("slow"), Account[str]("quick")
    for _ in range(3):
        queue.add(slow, "slow")
    assert queue.take() == "slow"
    for _ in range(100):
        queue.add(quick, "quick")
    queue.charge(0.05)
    before = 0
    while queue.take() == "quick":
        queue.charge(0.001)
        before += 1
    assert before in range(49, 52)


def test_a_service_that_was_charged_beside_a_light_tenant_does_not_wait_for_a_heavy_one() -> None:
    queue: FairQueue[str] = FairQueue()
    service, light, heavy = (
        Account[str]("service", is_service=True),
        Account[str]("light", 0.001),
        Account[str]("heavy", 1_000.0),
    )
    for account in (service, service, light):
        queue.add(account, account.name)
    for _ in range(2):
        queue.take()
        queue.charge(0.004)
    for _ in range(100):
        queue.add(heavy, "heavy")
    order = []
    for _ in range(10):
        order.append(queue.take())
        queue.charge(0.001)
    assert "service" in order[:6], "what it had is paid back by all others together"


def test_an_item_that_took_long_holds_up_no_account_but_its_own() -> None:
    queue: FairQueue[str] = FairQueue()
    service, bad, good = Account[str]("service", 3.0, is_service=True), Account[str]("bad"), Account[str]("good")
    for _ in range(1_000):
        queue.add(service, "service")
    queue.add(bad, "bad")
    queue.add(bad, "bad")
    while queue.take() != "bad":
        queue.charge(0.0005)
    queue.charge(0.02)
    queue.add(good, "good")
    before = 0
    while queue.take() == "service":
        queue.charge(0.0005)
        before += 1
    assert before <= 2, "60 ms of the service's part are owed by the bad one"


def test_a_service_does_not_wait_for_a_thousand_accounts_that_come_at_once() -> None:
    queue: FairQueue[str] = FairQueue()
    tenants = [Account[str](str(number)) for number in range(1_000)]
    for tenant in tenants:
        queue.add(tenant, "tenant")
        queue.add(tenant, "tenant")
    service = Account[str]("service", is_service=True)
    before = []
    for _ in range(20):
        queue.add(service, "service")
        before.append(0)
        while queue.take() != "service":
            queue.charge(0.0002)
            before[-1] += 1
        queue.charge(0.0002)
    assert max(before) <= 3


@pytest.mark.parametrize("seed", range(6))
def test_no_account_starves_whatever_comes(seed: int) -> None:
    """Until an account with items is served again, each other one gets its weight's part of what that had last, and one
    item more."""
    draw = random.Random(seed)
    queue: FairQueue[str] = FairQueue()
    accounts = [Account[str](str(place), draw.choice((0.1, 1.0, 10.0))) for place in range(12)]
    by_name = {account.name: account for account in accounts}
    others_s = {account.name: 0.0 for account in accounts}
    num_items = 0
    for _ in range(4_000):
        if draw.random() < 0.55 or not num_items:
            account = draw.choice(accounts)
            if not account.items:
                others_s[account.name] = 0
            queue.add(account, account.name)
            num_items += 1
        else:
            served = by_name[queue.take()]
            cost_s = draw.choice((0.0, 0.0001, 0.02))
            queue.charge(cost_s)
            num_items -= 1
            others_s[served.name] = 0
            for account in accounts:
                if account.items and account is not served:
                    others_s[account.name] += cost_s
                    weight = sum(other.weight for other in accounts)
                    most_s = 0.0201 * (weight / account.weight + len(accounts))
                    assert others_s[account.name] <= most_s
        assert len(queue) == num_items == sum(len(account.items) for account in accounts)


def test_a_queue_that_was_cleared_serves_its_accounts_again() -> None:
    queue: FairQueue[str] = FairQueue()
    one, other = Account[str]("one"), Account[str]("other")
    for account in (one, other, one):
        queue.add(account, account.name)
    queue.take()
    queue.clear()
    assert len(queue) == 0
    queue.add(other, "again")
    queue.add(one, "too")
    assert {queue.take(), queue.take()} == {"again", "too"}
