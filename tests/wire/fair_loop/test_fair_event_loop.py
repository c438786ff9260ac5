"""The loop's time goes to accounts in fair turns, and everything else is as asyncio promises."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import re
import signal
import socket
import threading
from asyncio import base_events
from collections.abc import Iterator
from contextvars import Context, copy_context
from typing import Any

import pytest

from baton_wire.fair_loop.charging import CHARGE, begin_charge, charge_to, charged_context
from baton_wire.fair_loop.fair_event_loop import ROUND_S, FairEventLoop, ReadyCallbacks
from baton_wire.fair_loop.fair_queue import Account

KNOWN = {"append(handle)", "clear()", "popleft()"}
"""What `BaseEventLoop` calls on its ready queue. It also asks whether the queue is empty, and for its length."""


@pytest.fixture
def loop() -> Iterator[FairEventLoop]:
    loop = FairEventLoop()
    yield loop
    loop.close()


def account(name: str, weight: float = 1.0) -> Account[Any]:
    return Account(name, weight)


def test_this_pythons_loop_uses_its_ready_queue_as_expected() -> None:
    source = inspect.getsource(base_events)
    assert set(re.findall(r"_ready\.(\w+\([^)]*\))", source)) == KNOWN
    others = {match.strip() for match in re.findall(r"^.*self\._ready\b(?!\.).*$", source, re.MULTILINE)}
    assert others == {
        "self._ready = collections.deque()",
        "if self._ready or self._stopping:",
        "ntodo = len(self._ready)",
    }
    run_once = inspect.getsource(base_events.BaseEventLoop._run_once)  # type: ignore[attr-defined]
    assert re.search(r"popleft\(\)\s+if handle\._cancelled:\s+continue", run_once), "what is cancelled is skipped"


class Clock:
    """A clock that the test's callbacks move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_rounds(ready: ReadyCallbacks) -> list[int]:
    """Run what is ready, round after round; returns the callbacks that ran in each."""
    rounds: list[int] = []
    while ready:
        rounds.append(ready.run_round())
    return rounds


def test_a_tenant_with_a_thousand_callbacks_delays_another_by_one_at_each_step(loop: FairEventLoop) -> None:
    clock = Clock()
    ready, many, few = ReadyCallbacks(clock=clock), charged_context(account("many")), charged_context(account("few"))
    ran: list[str] = []

    def work(name: str) -> None:
        ran.append(name)
        clock.now += 0.001

    def step(left: int) -> None:
        work(f"step {left}")
        if left:
            ready.append(asyncio.Handle(step, (left - 1,), loop, few))

    for _ in range(1_000):
        ready.append(asyncio.Handle(work, ("many",), loop, many))
    ready.append(asyncio.Handle(step, (9,), loop, few))
    run_rounds(ready)
    places = [ran.index(f"step {left}") for left in range(9, -1, -1)]
    assert places[0] <= 1
    assert all(later - sooner <= 3 for sooner, later in itertools.pairwise(places)), places
    assert places[-1] <= 2 * len(places)


def test_a_round_ends_soon_after_its_time(loop: FairEventLoop) -> None:
    clock, context = Clock(), copy_context()
    ready = ReadyCallbacks(clock=clock)

    def work() -> None:
        clock.now += ROUND_S / 4

    for _ in range(100):
        ready.append(asyncio.Handle(work, (), loop, context))
    rounds = run_rounds(ready)
    assert sum(rounds) == 100
    assert max(rounds) <= 5, "then I/O is polled"
    assert min(rounds) >= 1


def test_callbacks_scheduled_after_a_stop_wait_for_the_next_run_and_those_before_do_not(loop: FairEventLoop) -> None:
    ran: list[str] = []

    def stop() -> None:
        loop.stop()
        loop.call_soon(ran.append, "after")

    loop.call_soon(stop, context=charged_context(account("one")))
    loop.call_soon(ran.append, "before", context=charged_context(account("two")))
    loop.run_forever()
    assert ran == ["before"]
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == ["before", "after"]


def test_a_cancelled_callback_does_not_run(loop: FairEventLoop) -> None:
    ran: list[int] = []
    loop.call_soon(ran.append, 1).cancel()
    later = loop.call_soon(ran.append, 3)
    loop._ready.run_round()
    assert ran == [3]
    later.cancel()
    loop.call_soon(later.cancel)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == [3]


def test_a_callback_that_exits_ends_the_run_and_leaves_the_others_for_the_next(loop: FairEventLoop) -> None:
    ran: list[int] = []

    def leave() -> None:
        raise SystemExit(3)

    loop.call_soon(leave)
    loop.call_soon(ran.append, 1)
    with pytest.raises(SystemExit):
        loop.run_forever()
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert ran == [1]


def test_debug_mode_reports_a_slow_round_and_failed_callbacks(
    loop: FairEventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("deliberate")

    loop.set_debug(True)
    loop.slow_callback_duration = 0.0
    loop.call_soon(fail)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert "a round of callbacks" in caplog.text
    assert "deliberate" in caplog.text


def test_waiting_for_io_is_charged_to_no_account(loop: FairEventLoop) -> None:
    clock, one = Clock(), account("one")
    ready = ReadyCallbacks(clock=clock)
    ready.append(asyncio.Handle(lambda: None, (), loop, charged_context(one)))
    ready.run_round()
    assert not ready
    clock.now += 5.0  # select
    ready.run_round()
    assert one.spent_s < 0.001


def test_a_descriptor_that_is_polled_again_before_its_callback_ran_is_queued_once(loop: FairEventLoop) -> None:
    ours, theirs = socket.socketpair()
    read: list[bytes] = []
    with ours, theirs:
        ours.setblocking(False)
        loop.add_reader(ours, lambda: read.append(ours.recv(1)))
        theirs.send(b"abc")
        for _ in range(3):
            loop._process_events(loop._selector.select(0))
        loop.call_soon(loop.stop)
        loop.run_forever()
        assert read == [b"a"]
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert read == [b"a", b"b", b"c"]
        loop.remove_reader(ours)


def test_a_descriptor_whose_callback_waits_is_not_reported_by_every_poll(loop: FairEventLoop) -> None:
    """A thousand connections of a tenant wait for its turn: polls must not report all of them again and again."""
    ours, theirs = socket.socketpair()
    read: list[bytes] = []
    with ours, theirs:
        ours.setblocking(False)
        loop.add_reader(ours, lambda: read.append(ours.recv(1)))
        theirs.send(b"abc")
        reported = []
        for _ in range(5):
            events = loop._selector.select(0.0)
            reported.append(len(events))
            loop._process_events(events)
            loop._selector._polled_s = float("-inf")  # long ago
        assert reported == [1, 1, 0, 0, 0]
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert read == [b"a", b"b", b"c"]
        loop.remove_reader(ours)


def test_what_is_written_and_read_anew_while_a_callback_waits_is_reported(loop: FairEventLoop) -> None:
    ours, theirs = socket.socketpair()
    ran: list[str] = []

    def poll() -> None:
        loop._selector._polled_s = float("-inf")
        loop._process_events(loop._selector.select(0.0))

    def write() -> None:
        ran.append("write")
        loop.remove_writer(ours)

    with ours, theirs:
        ours.setblocking(False)
        loop.add_reader(ours, lambda: ran.append("first reader"))
        theirs.send(b"a")
        for _ in range(3):
            poll()
        loop.add_writer(ours, write)
        poll()
        loop.remove_reader(ours)
        loop.add_reader(ours, lambda: ran.append(f"second reader {ours.recv(1)!r}"))
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert sorted(ran) == ["second reader b'a'", "write"]
        loop.remove_reader(ours)


def test_work_is_charged_to_the_account_of_its_context_with_all_that_it_begins(loop: FairEventLoop) -> None:
    first, second = account("first"), account("second")
    seen: list[str] = []

    def note() -> None:
        charge = CHARGE.get()
        seen.append("process" if charge is None else charge.account.name)

    async def child() -> None:
        note()
        await asyncio.sleep(0)
        note()

    async def connection() -> None:
        begin_charge(first)
        note()
        task = asyncio.create_task(child())
        await asyncio.sleep(0)
        charge_to(second)
        await task
        asyncio.get_running_loop().call_soon(note)
        await asyncio.sleep(0.001)

    async def main() -> None:
        charge_to(second)  # the process's own work stays the process's
        note()
        await asyncio.create_task(connection())
        note()

    loop.run_until_complete(main())
    assert seen == ["process", "first", "first", "second", "second", "process"]
    assert first.spent_s > 0
    assert second.spent_s > 0


def test_threads_timers_and_sockets_work_beside_a_loop_that_is_never_idle(loop: FairEventLoop) -> None:
    busy, quiet = charged_context(account("busy")), charged_context(account("quiet"))

    def spin() -> None:
        loop.call_soon(spin, context=busy)

    async def exchange() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readexactly(100_000))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"x" * 100_000)
        answered = await reader.read()
        while len(answered) < 100_000:
            answered += await reader.read()
        writer.close()
        server.close()
        await asyncio.to_thread(threading.Event().wait, 0.001)
        await asyncio.sleep(0.001)
        return answered

    for _ in range(50):
        loop.call_soon(spin, context=busy)
    task = loop.create_task(exchange(), context=quiet)
    assert len(loop.run_until_complete(asyncio.wait_for(task, 30.0))) == 100_000


def test_a_signal_is_handled_while_a_tenant_keeps_the_loop_busy(loop: FairEventLoop) -> None:
    busy = charged_context(account("busy"))
    turns = 0

    def spin() -> None:
        nonlocal turns
        turns += 1
        if turns == 2_000:
            os.kill(os.getpid(), signal.SIGUSR1)
        if turns < 1_000_000:
            loop.call_soon(spin, context=busy)
        else:
            loop.stop()

    for _ in range(50):
        loop.call_soon(spin, context=busy)
    loop.add_signal_handler(signal.SIGUSR1, loop.stop)
    loop.run_forever()
    loop.remove_signal_handler(signal.SIGUSR1)
    assert 2_000 <= turns < 1_000_000


def test_a_runner_cancels_what_is_left_and_closes_the_loop() -> None:
    ended: list[str] = []

    async def stay() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    async def main() -> None:
        asyncio.get_running_loop().create_task(stay(), context=charged_context(account("one")))
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=FairEventLoop) as runner:
        runner.run(main())
    assert ended == ["cancelled"]


def test_an_account_serves_another_loop_after_the_first_was_closed_with_callbacks_waiting() -> None:
    one = account("one")
    ran: list[int] = []
    context: Context = charged_context(one)
    first = FairEventLoop()
    first.call_soon(ran.append, 1, context=context)
    len(first._ready)
    first.close()
    second = FairEventLoop()
    second.call_soon(ran.append, 2, context=context)
    second.call_soon(second.stop, context=context)
    second.run_forever()
    second.close()
    assert ran == [2]
