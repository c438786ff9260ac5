"""The queue of keys: one pass of a key at a time, bursts become one pass, failures wait longer and longer."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from baton_control.names import Key
from baton_operator.kube.work_queue import FIRST_DELAY_S, GAP_S, LONGEST_DELAY_S, WorkQueue

A, B = Key("x", "a"), Key("x", "b")


def queue() -> WorkQueue:
    return WorkQueue(random.Random(1))


def test_a_burst_of_offers_is_one_pass() -> None:
    waiting = queue()
    for _ in range(5):
        waiting.offer(A, 1.0)
    assert waiting.take(0.9) is None
    assert waiting.take(1.0) == A
    assert waiting.take(2.0) is None


def test_keys_are_taken_in_the_order_in_which_they_became_due() -> None:
    waiting = queue()
    waiting.offer(A, 2.0)
    waiting.offer(B, 1.0)
    assert [waiting.take(3.0), waiting.take(3.0)] == [B, A]


def test_what_is_offered_during_a_pass_comes_after_it_and_not_before_a_moment_has_passed() -> None:
    waiting = queue()
    waiting.offer(A, 0.0)
    assert waiting.take(0.0) == A
    waiting.offer(A, 0.1)
    assert waiting.take(1.0) is None, "it is being worked on"
    waiting.done(A, 1.0)
    assert waiting.take(1.0 + GAP_S / 2) is None
    assert waiting.take(1.0 + GAP_S) == A


def test_an_offer_for_later_does_not_hold_up_one_for_now() -> None:
    waiting = queue()
    waiting.offer(A, 300.0)
    waiting.offer(A, 1.0)
    assert waiting.take(1.0) == A
    waiting.done(A, 1.0)
    assert waiting.next_at() is None, "the later one is covered by the earlier pass"


def test_failures_wait_twice_as_long_each_time_up_to_a_bound_and_offers_do_not_shorten_it() -> None:
    waiting, now, delays = queue(), 0.0, []
    waiting.offer(A, now)
    for _ in range(14):
        assert waiting.take(now) == A
        delays.append(waiting.failed(A, now))
        waiting.offer(A, now)
        assert waiting.take(now + delays[-1] * 0.99) is None
        now += delays[-1]
    assert FIRST_DELAY_S * 0.75 <= delays[0] <= FIRST_DELAY_S * 1.25
    assert delays[5] > delays[1] * 4
    assert max(delays) <= LONGEST_DELAY_S * 1.25
    assert waiting.take(now) == A
    waiting.done(A, now)
    waiting.offer(A, now)
    assert waiting.next_at() == now + GAP_S, "a success wipes the failures out"


def test_a_server_that_says_when_to_come_again_is_obeyed() -> None:
    waiting = queue()
    waiting.offer(A, 0.0)
    waiting.take(0.0)
    assert waiting.failed(A, 0.0, at_least_s=30.0) == 30.0
    assert waiting.next_at() == 30.0


def test_a_key_that_is_gone_leaves_nothing_behind() -> None:
    waiting = queue()
    waiting.offer(A, 0.0)
    waiting.take(0.0)
    waiting.done(A, 0.0)
    waiting.forget(A)
    assert waiting._states == {}


@given(
    st.lists(
        st.tuples(st.sampled_from([A, B]), st.sampled_from(["offer", "work", "fail"]), st.floats(0, 5)), max_size=60
    )
)
def test_no_offer_is_ever_lost_and_no_key_is_worked_on_twice(steps: list[tuple[Key, str, float]]) -> None:
    """After each offer the key is taken at some later time, whatever happened in between."""
    waiting, now = queue(), 0.0
    owed: set[Key] = set()
    in_work: set[Key] = set()
    for key, what, wait in steps:
        now += wait
        if what == "offer":
            waiting.offer(key, now)
            owed.add(key)
            continue
        taken = waiting.take(now)
        if taken is None:
            continue
        assert taken not in in_work
        in_work.add(taken)
        owed.discard(taken)
        if what == "work":
            waiting.done(taken, now)
        else:
            waiting.failed(taken, now)
            owed.add(taken)
        in_work.discard(taken)
    while (due := waiting.next_at()) is not None:
        now = max(now, due)
        taken = waiting.take(now)
        assert taken is not None
        owed.discard(taken)
        waiting.done(taken, now)
    assert not owed
    assert waiting.is_idle(now)
