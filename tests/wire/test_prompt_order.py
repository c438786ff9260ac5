"""Whose turn it is: the nearest target first, what is late last, whose client has waited before at once."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_wire.rules.gateway_rounds import HeldRank, Urgency
from baton_wire.rules.prompt_order import BEGIN_SHARE, PATIENCE, PromptOrder, _Timed


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 3), st.booleans()), min_size=1, max_size=60), st.floats(0.1, 2))
def test_the_nearest_target_goes_first_and_late_prompts_last(
    steps: list[tuple[float, float, bool]], ttft_s: float
) -> None:
    order: PromptOrder[int] = PromptOrder(ttft_s)
    starts: dict[int, float] = {}
    late_keys: dict[int, float] = {}
    now, by_s = 0.0, BEGIN_SHARE * ttft_s
    for number, (seconds, own_s, is_push) in enumerate(steps):
        now += seconds
        if is_push:
            order.push(number, now, own_s)
            starts[number] = now + (by_s if own_s > by_s else by_s - own_s)
            late_keys[number] = now + PATIENCE * own_s
        elif starts:
            keys = {prompt: late_keys[prompt] if starts[prompt] < now else starts[prompt] for prompt in starts}
            expected = min(starts, key=lambda each: (starts[each] < now, keys[each], each))
            assert order.first(now) == order.pop() == expected
            del starts[expected]
        assert len(order) == len(starts)


def test_without_a_target_they_go_as_they_came_and_are_never_late() -> None:
    order: PromptOrder[str] = PromptOrder(None)
    for at_s, prompt in enumerate("abc"):
        order.push(prompt, float(at_s), own_s=9.0 - at_s)
    order.drop_late(lambda prompt: True)
    assert [(order.first(1e6), order.pop()) for _ in range(3)] == [("a", "a"), ("b", "b"), ("c", "c")]


def test_whose_client_has_waited_before_goes_at_once() -> None:
    order: PromptOrder[str] = PromptOrder(1.0)
    order.push("new", 0.0, 0.1)
    order.push_front("retried")
    order.push_front("retried later")
    assert [(order.first(0.0), order.pop())[1] for _ in range(3)] == ["retried later", "retried", "new"]


def test_late_prompts_that_nobody_waits_for_are_forgotten() -> None:
    order: PromptOrder[str] = PromptOrder(1.0)
    for prompt in "abc":
        order.push(prompt, 0.0, 0.1)
    assert order.first(9.0) == "a"
    order.drop_late(lambda prompt: prompt == "b")
    assert [(order.first(9.0), order.pop())[1] for _ in range(len(order))] == ["a", "c"]


Waiting = list[tuple[float, float]]
"""(seconds until the latest start, own seconds) of each prompt, in the order of starts."""
WAITING = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=8).map(
    lambda each: sorted((start / 100, own / 100) for start, own in each)
)


def ordered(waiting: Waiting) -> PromptOrder[int]:
    """All have waited so long that the time until they have to start is as given."""
    order: PromptOrder[int] = PromptOrder(1.0)
    for number, (start_s, own_s) in enumerate(waiting):
        order.push(number, start_s - (BEGIN_SHARE - own_s), own_s)
    return order


def all_start_in_time(waiting: Waiting, workers: int, rounding_s: float = 1e-9) -> bool:
    before_s = itertools.accumulate((own_s for _, own_s in waiting), initial=0.0)
    pairs = zip(before_s, waiting, strict=False)
    return all(before / workers <= start_s + rounding_s for before, (start_s, _) in pairs)


def most_in_time(waiting: Waiting, workers: int, rounding_s: float) -> int:
    """By trying all."""
    return max(
        count
        for count in range(len(waiting) + 1)
        if any(all_start_in_time(list(some), workers, rounding_s) for some in itertools.combinations(waiting, count))
    )


def taken(order: PromptOrder[int], workers: int) -> list[int]:
    """All, in the order in which they are let go at one moment."""
    return [(order.first(0.0, workers), order.pop())[1] for _ in range(len(order))]


@given(WAITING, st.integers(1, 3))
def test_as_few_as_have_to_be_are_set_aside(waiting: Waiting, workers: int) -> None:
    order = ordered(waiting)
    order.first(0.0, workers)
    aside = len(order._deferred)
    order_taken = taken(order, workers)
    in_time, later = order_taken[: len(order_taken) - aside], order_taken[len(order_taken) - aside :]
    assert sorted(order_taken) == list(range(len(waiting))), "no prompt is lost"
    assert (in_time, later) == (sorted(in_time), sorted(later)), "each part in the order of starts"
    assert all_start_in_time([waiting[number] for number in in_time], workers)
    assert most_in_time(waiting, workers, -1e-9) <= len(in_time) <= most_in_time(waiting, workers, 1e-9)


def test_the_longest_makes_room_for_several() -> None:
    assert taken(ordered([(0.05, 0.30), (0.10, 0.1), (0.20, 0.1), (0.28, 0.1)]), 1) == [1, 2, 3, 0]
    assert taken(ordered([(0.05, 0.30), (0.10, 0.1), (0.20, 0.1), (0.28, 0.1)]), 2) == [1, 2, 3, 0]
    assert taken(ordered([(0.05, 0.30), (0.10, 0.1), (0.20, 0.1), (0.28, 0.1)]), 4) == [0, 1, 2, 3]


def test_who_was_set_aside_is_back_in_line_when_there_is_room() -> None:
    order = ordered([(0.05, 0.20), (0.10, 0.1), (0.15, 0.1)])
    assert (order.first(0.0, 1), order.pop()) == (1, 1)
    assert order.first(0.04, 2) == 0, "another worker came"


def test_who_was_set_aside_is_late_in_the_end() -> None:
    order = ordered([(0.05, 0.20), (0.10, 0.1), (0.15, 0.1)])
    order.first(0.0, 1)
    order.push(3, 0.05, 0.1)
    assert [(order.first(0.06, 1), order.pop())[1] for _ in range(len(order))] == [1, 3, 2, 0]


def test_of_late_prompts_the_shorter_goes_first() -> None:
    order = ordered([(0.05, 0.20), (0.10, 0.1), (0.15, 0.1)])
    order.first(0.0, 1)
    assert len(order._deferred) == 1
    assert [(order.first(0.5, 1), order.pop())[1] for _ in range(len(order))] == [1, 2, 0]


def test_a_late_next_turn_does_not_wait_for_a_backlog_of_first_turns() -> None:
    order: PromptOrder[str] = PromptOrder(2.0)
    for number in range(20):
        order.push(f"first {number}", 0.0, 0.8)
    order.push("next", 6.0, 0.06)
    assert order.first(9.0) == "next"


def test_a_late_long_prompt_waits_for_shorter_ones_only_so_long() -> None:
    order: PromptOrder[str] = PromptOrder(2.0)
    order.push("long", 0.0, 0.8)
    for arrival_s in (0.0, 10.0, 29.0, 33.0):
        order.push(f"at {arrival_s:g}", arrival_s, 0.06)
    taken_in_order = [(order.first(60.0), order.pop())[1] for _ in range(len(order))]
    assert taken_in_order == ["at 0", "at 10", "at 29", "long", "at 33"]


def shared(tenants: list[tuple[str, float, float, int]]) -> list[str]:
    """Prompts in time by tenant, in the order of tenants: name, weight, own seconds of each prompt, prompts."""
    order: PromptOrder[str] = PromptOrder(1.0)
    for name, weight, own_s, count in tenants:
        for _ in range(count):
            order.push(name, 0.0, own_s, name, weight)
    order.first(0.0, 1.0)
    return sorted(entry.prompt for entry in order._in_time)


def test_a_flood_of_short_prompts_makes_itself_late() -> None:
    in_time = shared([("calm", 1.0, 0.2, 1), ("flood", 1.0, 0.01, 400)])
    assert in_time.count("calm") == 1
    assert in_time.count("flood") in range(37, 42), "what is left of 0.6 s"


def test_weights_share_what_can_be_in_time() -> None:
    in_time = shared([("heavy", 3.0, 0.02, 100), ("light", 1.0, 0.01, 100)])
    assert in_time.count("heavy") * 0.02 / 3 == pytest.approx(in_time.count("light") * 0.01, abs=0.02)


TENANTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(1, 12)).map(
        lambda each: (each[1] / 64, each[2] / 64, each[0])
    ),
    max_size=30,
).map(sorted)


@given(TENANTS)
def test_the_longest_of_whoever_has_most_in_line_goes(waiting: list[tuple[float, float, str]]) -> None:
    """Compared with the rule written down plainly: weights of a, b and c are 1, 2 and 4."""
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    order: PromptOrder[int] = PromptOrder(None)
    line: list[int] = []
    for number, (start_s, own_s, tenant) in enumerate(waiting):
        order._in_time.append(_Timed(start_s, number, own_s, number, tenant, weights[tenant], 0.0))
        line.append(number)
        while number in line and sum(waiting[waits][1] for waits in line if waits != number) > start_s:
            work = {name: sum(waiting[waits][1] for waits in line if waiting[waits][2] == name) for name in weights}
            most = min(weights, key=lambda name: (-work[name] / weights[name], name))
            line.remove(max((waiting[waits][1], waits) for waits in line if waiting[waits][2] == most)[1])
    order._defer_longest(0.0, 1.0)
    assert [entry.number for entry in order._in_time] == line
    assert len(order) == len(waiting)


def turns(waiting: list[tuple[str, str, float]], at_work: dict[str, float], now: float = 0.0) -> list[str]:
    """Names of prompts as they go, each of which is at work from then on. `waiting`: prompt, tenant, arrival."""
    order: PromptOrder[tuple[str, str]] = PromptOrder(1.0)
    for prompt, tenant, arrival_s in waiting:
        order.push((prompt, tenant), arrival_s, 0.01, tenant)
    gone = []
    while len(order):
        order.first(now, 0.0, lambda tenant: at_work.get(tenant, 0.0))
        prompt, tenant = order.pop()
        at_work[tenant] = at_work.get(tenant, 0.0) + 1
        gone.append(prompt)
    return gone


def test_the_tenant_with_the_least_at_work_goes_first_and_its_own_prompts_by_their_targets() -> None:
    flood = [(f"a{number}", "a", -0.4) for number in range(4)]
    assert turns([*flood, ("b2", "b", 0.0), ("b1", "b", -0.1)], {"a": 2.0}) == ["b1", "b2", "a0", "a1", "a2", "a3"]
    assert turns([*flood, ("b1", "b", 0.0)], {"a": 2.0, "b": 2.5}) == ["a0", "b1", "a1", "a2", "a3"]


def test_late_prompts_of_a_flood_do_not_keep_another_tenants_late_one_waiting() -> None:
    late = [*((f"a{number}", "a", -9.0) for number in range(3)), ("b1", "b", -2.0), ("b2", "b", -1.0)]
    assert turns(late, {"a": 5.0}) == ["b1", "b2", "a0", "a1", "a2"]


def test_prompts_in_time_that_never_cease_do_not_starve_a_tenant_with_nothing_at_work() -> None:
    waiting = [("a1", "a", 0.0), ("a2", "a", 0.0), ("b1", "b", -5.0), ("b2", "b", -5.0)]
    assert turns(waiting, {"a": 2.0}) == ["b1", "a1", "a2", "b2"], "the second one is late, and waits as late ones do"


def test_other_gateways_hear_that_a_tenant_with_nothing_at_work_goes_at_once() -> None:
    order: PromptOrder[str] = PromptOrder(1.0)
    order.push("a", 0.0, 0.1, "a")
    order.push("b", -5.0, 0.1, "b")
    assert order.first(0.0, 0.0, lambda tenant: float(tenant == "a")) == "b"
    assert order.urgency() == Urgency(HeldRank.IN_TIME)
    assert order.first(0.0, 0.0, lambda tenant: 1.0) == "a"
    assert order.urgency().rank is HeldRank.IN_TIME
    assert (order.pop(), order.first(0.0, 0.0, lambda tenant: 1.0)) == ("a", "b")
    assert order.urgency() == Urgency(HeldRank.LATE)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(-3, 0.5), st.floats(0, 0.3)), max_size=30))
def test_whoever_is_asked_first_nobody_is_lost(waiting: list[tuple[str, float, float]]) -> None:
    order: PromptOrder[int] = PromptOrder(1.0)
    at_work = {"a": 2.0, "b": 0.0, "c": 1.0}
    for number, (tenant, arrival_s, own_s) in enumerate(waiting):
        order.push(number, arrival_s, own_s, tenant)
    gone = []
    while len(order):
        prompt = order.first(0.5, 1.0, at_work.__getitem__)
        assert order.pop() == prompt
        at_work[waiting[prompt][0]] += 1
        gone.append(prompt)
    assert sorted(gone) == list(range(len(waiting)))


@pytest.mark.parametrize("are_compared", [False, True])
@given(waiting=st.lists(st.tuples(st.sampled_from("abc"), st.floats(-30, -3), st.floats(0, 0.6)), max_size=30))
def test_late_prompts_keep_their_order_within_each_tenant_and_without_tenants(
    are_compared: bool, waiting: list[tuple[str, float, float]]
) -> None:
    order: PromptOrder[int] = PromptOrder(1.0)
    served = dict.fromkeys("abc", 0.0)
    for number, (tenant, arrival_s, own_s) in enumerate(waiting):
        order.push(number, arrival_s, own_s, tenant)
    line = sorted(range(len(waiting)), key=lambda number: (waiting[number][1] + PATIENCE * waiting[number][2], number))
    if line:
        order.first(0.0)
        gone = line.pop(len(line) // 2)
        order.drop_late(lambda prompt: prompt == gone)
    while line:
        tenants = {waiting[number][0] for number in line}
        lead = served.__getitem__ if are_compared and len(tenants) > 1 else None
        leads = [0.0 if lead is None else served[waiting[number][0]] for number in line]
        expected = line[leads.index(min(leads))]
        assert order.first(0.0, 0.0, lead) == order.pop() == expected
        line.remove(expected)
        served[waiting[expected][0]] += 1.0
        assert len(order) == len(line) == len(list(order))
