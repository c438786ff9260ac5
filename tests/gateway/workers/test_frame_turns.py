"""Frames from a worker are taken in turns with other tasks, however many have arrived and however long they take."""

from __future__ import annotations

import asyncio

import pytest

from baton_gateway.workers.links import TURN_FRAMES, TURN_S, read_in_turns

ARRIVED = 200


async def longest_turn(cost_s: float) -> int:
    """The frames that are taken while another task waits for its turn, where each costs `cost_s`."""
    now_s, num_taken, arrived = 0.0, 0, iter(range(ARRIVED))

    async def receive() -> bytes:  # frames that have arrived are not waited for
        if next(arrived, None) is None:
            await asyncio.get_running_loop().create_future()
        return b""

    def take(frame: bytes) -> None:
        nonlocal now_s, num_taken
        now_s, num_taken = now_s + cost_s, num_taken + 1

    reading = asyncio.create_task(read_in_turns(receive, take, lambda: now_s))
    longest = before = 0
    while num_taken < ARRIVED:
        await asyncio.sleep(0)
        longest, before = max(longest, num_taken - before), num_taken
    reading.cancel()
    return longest


@pytest.mark.parametrize(
    ("cost_s", "frames"), [(0.0, TURN_FRAMES), (0.3 * TURN_S, 4), (1.5 * TURN_S, 1), (20 * TURN_S, 1)]
)
async def test_a_turn_ends_by_number_or_by_time(cost_s: float, frames: int) -> None:
    assert await longest_turn(cost_s) == frames
