"""Frames from a worker are taken in turns with other tasks, however many have arrived and however long they take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from baton_gateway.workers.links import TURN_ENTRIES, TURN_FRAMES, TURN_S, read_in_turns, slice_tokens
from baton_wire.messages.gateway_link import Tokens
from baton_wire.messages.values import TokenEntry

ARRIVED = 200


async def longest_turn(cost_s: float, steps: int = 1) -> int:
    """The steps that are taken while another task waits for its turn, where each costs `cost_s` and each frame has
    `steps`.
    """
    now_s, num_taken, arrived = 0.0, 0, iter(range(ARRIVED))

    async def receive() -> bytes:  # frames that have arrived are not waited for
        if next(arrived, None) is None:
            await asyncio.get_running_loop().create_future()
        return b""

    def take(frame: bytes) -> Iterator[None]:
        nonlocal now_s, num_taken
        for step in range(steps):
            if step:
                yield
            now_s, num_taken = now_s + cost_s, num_taken + 1

    reading = asyncio.create_task(read_in_turns(receive, take, lambda: now_s))
    longest = before = 0
    while num_taken < steps * ARRIVED:
        await asyncio.sleep(0)
        longest, before = max(longest, num_taken - before), num_taken
    reading.cancel()
    return longest


@pytest.mark.parametrize(
    ("cost_s", "frames"), [(0.0, TURN_FRAMES), (0.3 * TURN_S, 4), (1.5 * TURN_S, 1), (20 * TURN_S, 1)]
)
async def test_a_turn_ends_by_number_or_by_time(cost_s: float, frames: int) -> None:
    assert await longest_turn(cost_s) == frames


async def test_a_long_frame_is_taken_in_steps_with_turns_between_them() -> None:
    assert await longest_turn(1.5 * TURN_S, steps=10) == 1
    assert await longest_turn(0.3 * TURN_S, steps=10) == 4
    assert await longest_turn(0.0, steps=10) == 10 * TURN_FRAMES


def test_a_frame_of_many_entries_is_passed_on_in_slices() -> None:
    entries = tuple(TokenEntry(number.to_bytes(16), 1, 0, 0, (7,)) for number in range(2 * TURN_ENTRIES + 1))
    assert [len(tokens.entries) for tokens in slice_tokens(Tokens(3, entries))] == [TURN_ENTRIES, TURN_ENTRIES, 1]
    assert sum((tokens.entries for tokens in slice_tokens(Tokens(3, entries))), ()) == entries
    whole = Tokens(3, entries[:TURN_ENTRIES])
    assert list(slice_tokens(whole)) == [whole]
