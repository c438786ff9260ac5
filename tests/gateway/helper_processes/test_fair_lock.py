"""One piece of work at a time, in turns among clients."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from baton_gateway.errors import TurnTimeoutError
from baton_gateway.helper_processes.fair_lock import FairLock

LONG_S = 30.0


async def nothing() -> None:
    pass


async def test_turns_go_round_among_clients_that_wait() -> None:
    lock, order = FairLock(), []

    async def ask(client: str, number: int) -> None:
        async def work() -> None:
            order.append(f"{client}{number}")
            await asyncio.sleep(0)

        await lock.run(client, work, LONG_S)

    tasks = [asyncio.create_task(ask("a", number)) for number in range(5)]
    tasks += [asyncio.create_task(ask(client, 0)) for client in "bc"]
    await asyncio.sleep(0)
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a0", "a1", "b0", "c0", "a3", "a4"]
    await lock.run("d", nothing, LONG_S)


async def test_work_holds_its_turn_to_its_end_when_its_caller_is_gone() -> None:
    lock, order, may_end = FairLock(), [], asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        order.append("ended")

    async def next_work() -> str:
        order.append("next")
        return "done"

    gone = asyncio.create_task(lock.run("a", work, LONG_S))
    await asyncio.sleep(0)
    following = asyncio.create_task(lock.run("b", next_work, LONG_S))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert order == []
    may_end.set()
    assert await following == "done"
    assert order == ["ended", "next"]


async def test_the_next_work_begins_before_its_caller_is_woken() -> None:
    """A caller wakes late where its tenant fills the event loop; the lock would be idle meanwhile."""
    lock, begun, loop = FairLock(), [], asyncio.get_running_loop()
    rounds = itertools.count()
    round_number = 0

    def count_round() -> None:
        nonlocal round_number
        round_number = next(rounds)
        loop.call_soon(count_round)

    async def work() -> None:
        begun.append(round_number)

    count_round()
    await asyncio.gather(*(lock.run("a", work, LONG_S) for _ in range(5)))
    assert [later - sooner for sooner, later in itertools.pairwise(begun)] == [2, 2, 2, 2], "an end, then a begin"


@pytest.mark.parametrize("turns_of_loop", range(3))
async def test_a_lock_that_is_stopped_cancels_all_turns_and_is_free(turns_of_loop: int) -> None:
    lock, begun = FairLock(), []

    async def work() -> None:
        begun.append("work")
        await asyncio.Event().wait()

    stuck = [asyncio.create_task(lock.run("a", work, LONG_S)) for _ in range(3)]
    for _ in range(1 + turns_of_loop):
        await asyncio.sleep(0)
    num_begun = len(begun)
    await lock.stop()
    await asyncio.wait(stuck, timeout=LONG_S)
    assert all(task.cancelled() for task in stuck)
    assert len(begun) == num_begun, "no other work begins"
    assert lock.held_s(time.monotonic()) == 0.0
    await lock.run("c", nothing, LONG_S)


async def test_a_turn_that_does_not_come_in_time_is_given_up_and_its_work_never_begins() -> None:
    lock, may_end, begun = FairLock(), asyncio.Event(), []

    async def late() -> None:
        begun.append("late")

    async def hold() -> None:
        await may_end.wait()

    holding = asyncio.create_task(lock.run("a", hold, LONG_S))
    await asyncio.sleep(0)
    with pytest.raises(TurnTimeoutError, match=r"within 0\.001 s"):
        await lock.run("b", late, 0.001)
    may_end.set()
    await holding
    await lock.run("c", nothing, LONG_S)
    assert begun == []


async def test_work_may_take_longer_than_the_wait_for_its_turn() -> None:
    lock, order = FairLock(), []

    async def work() -> None:
        await asyncio.sleep(0.02)
        order.append("ended")

    await asyncio.gather(lock.run("a", work, 0.001), lock.run("a", work, LONG_S))
    assert order == ["ended", "ended"]


@pytest.mark.parametrize("delay", range(5))
async def test_a_turn_whose_caller_is_cancelled_is_passed_on(delay: int) -> None:
    lock, taken, may_end = FairLock(), [], asyncio.Event()

    async def ask(client: str) -> None:
        async def work() -> None:
            taken.append(client)

        await lock.run(client, work, LONG_S)

    async def hold() -> None:
        await may_end.wait()

    holding = asyncio.create_task(lock.run("first", hold, LONG_S))
    await asyncio.sleep(0)
    tasks = [asyncio.create_task(ask("second")), asyncio.create_task(ask("third"))]
    await asyncio.sleep(0)
    may_end.set()
    for _ in range(delay):
        await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.gather(holding, *tasks, return_exceptions=True)
    assert taken[-1] == "third"
    async with asyncio.timeout(60):
        await lock.run("last", nothing, LONG_S)


async def test_an_error_of_the_work_reaches_its_caller_and_frees_the_lock() -> None:
    lock = FairLock()

    async def fail() -> None:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await lock.run("a", fail, LONG_S)
    await lock.run("a", nothing, LONG_S)
