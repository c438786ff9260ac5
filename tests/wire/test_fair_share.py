"""Turns and shares among flows."""

from __future__ import annotations

import random

import pytest

from baton_wire.rules.fair_share import GATEWAY_GREED, WORKER_GREED, StartTags, may_take

HOG, OTHER = b"h" * 16, b"o" * 16


def test_flows_of_one_piece_keep_the_order_in_which_they_came() -> None:
    turns, tags, dice = StartTags(), [], random.Random(1)
    for number in range(200):
        tags.append(turns.opened(number.to_bytes(16), 1.0 + dice.random() * 100))
        if number % 3 == 2:
            turns.began(tags[number // 2], 7.0)
    assert tags == sorted(tags)


def test_a_newcomer_goes_before_the_second_piece_of_a_flow() -> None:
    turns = StartTags()
    tags = [turns.opened(HOG, 100.0) for _ in range(5)]
    turns.began(tags[0], 100.0)
    assert tags[0] < turns.opened(OTHER, 20.0) < tags[2]


def test_later_pieces_get_their_turn_although_newcomers_never_end() -> None:
    turns = StartTags()
    for _ in range(2):
        last = turns.opened(HOG, 100.0)
    for number in range(1000):
        tag = turns.opened(number.to_bytes(16), 10.0)
        if tag > last:
            break
        turns.began(tag, 10.0)
        turns.closed(number.to_bytes(16))
    assert number < 50


def test_nothing_is_kept_of_flows_that_ended() -> None:
    turns = StartTags()
    turns.opened(HOG, 1.0)
    turns.opened(HOG, 1.0)
    turns.closed(HOG)
    assert len(turns) == 1
    turns.closed(HOG)
    assert len(turns) == 0


@pytest.mark.parametrize("greed", [GATEWAY_GREED, WORKER_GREED])
@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("flows", [1, 2, 5])
def test_flows_that_take_all_they_may_share_alike_and_leave_some(greed: float, size: int, flows: int) -> None:
    total, held = 256.0, [0.0] * flows
    while takers := [flow for flow in range(flows) if may_take(held[flow], size, total - sum(held), greed)]:
        held[min(takers, key=held.__getitem__)] += size
    free = total - sum(held)
    assert 0 < free <= total / (1 + flows * greed) + flows * size
    assert max(held) - min(held) <= size
    assert may_take(0, free, free, greed), "a newcomer takes what is left"
