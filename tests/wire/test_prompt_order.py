"""Whose turn it is: the nearest target first, what is late last, whose client has waited before at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton_wire.rules.prompt_order import BEGIN_SHARE, PromptOrder


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0, 3), st.booleans()), min_size=1, max_size=60), st.floats(0.1, 2))
def test_the_nearest_target_goes_first_and_late_prompts_last(
    steps: list[tuple[float, float, bool]], ttft_s: float
) -> None:
    order: PromptOrder[int] = PromptOrder(ttft_s)
    starts: dict[int, float] = {}
    now, by_s = 0.0, BEGIN_SHARE * ttft_s
    for number, (seconds, own_s, is_push) in enumerate(steps):
        now += seconds
        if is_push:
            order.push(number, now, own_s)
            starts[number] = now + (by_s if own_s > by_s else by_s - own_s)
        elif starts:
            expected = min(starts, key=lambda each: (starts[each] < now, starts[each], each))
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
