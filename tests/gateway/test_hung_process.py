"""A gateway process that hangs is killed and started again, and one that is briefly slow is not."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

import psutil
import pytest

from baton_gateway import parent_process
from baton_gateway.errors import ProcessesDownError
from baton_gateway.parent_process import CHILD_VARIABLE, RESTART_S, SILENCE, GatewayProcesses, until_silent
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import until
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.listening.sockets import bind
from baton_wire.liveness import LivenessConfig


def given_up_after_s(answers_at: Callable[[float], bool], until_s: float = 200.0, parent_stops_s: float = 0.0) -> float:
    """Virtual seconds until a child is given up; `until_s` when it is not."""

    async def watched() -> float:
        now = asyncio.get_running_loop().time
        stops = iter([parent_stops_s])

        async def answers(for_s: float) -> bool:
            if answers_at(now()):
                return True
            await asyncio.sleep(for_s + (next(stops, 0.0) if now() > 20 else 0.0))
            return False

        try:
            async with asyncio.timeout(until_s):
                await until_silent(answers, SILENCE)
        except TimeoutError:
            pass
        return now()

    return run_virtual(watched())


def test_a_child_that_never_answers_again_is_given_up_after_30_s() -> None:
    assert SILENCE.dead_s <= given_up_after_s(lambda now: False) < SILENCE.dead_s + SILENCE.suspect_s / 3
    assert 68.0 <= given_up_after_s(lambda now: now < 40.0) < 74.0


def test_a_child_that_is_slow_again_and_again_is_kept() -> None:
    assert given_up_after_s(lambda now: now % 28.0 < 2.0) == 200.0


def test_a_parent_that_was_stopped_itself_gives_the_child_its_time_anew() -> None:
    assert 20.0 + 40.0 + 30.0 <= given_up_after_s(lambda now: False, parent_stops_s=40.0) < 100.0


@contextlib.asynccontextmanager
async def one_child(
    pool: FakePool, silence: LivenessConfig, start_s: float = 60.0
) -> AsyncIterator[tuple[GatewayProcesses, list[psutil.Process]]]:
    """One child of this process; the list holds every process that was seen of it."""
    seen: list[psutil.Process] = []
    listening = bind("127.0.0.1", 0, shared=True)
    listening.listen()
    processes = GatewayProcesses([*pool.flags, "--drain-s=0"], [listening], 0.0, silence, start_s)

    def look() -> None:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if child not in seen and "baton_gateway" in " ".join(child.cmdline()):
                    seen.append(child)

    async def look_on() -> None:
        while True:
            look()
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look_on())
    try:
        yield processes, seen
    finally:
        looking.cancel()
        await processes.stop()
        listening.close()


@pytest.mark.processes
async def test_a_stopped_child_is_killed_and_another_serves_its_socket(pool: FakePool) -> None:
    async with one_child(pool, LivenessConfig(suspect_s=3.0, dead_s=10.0)) as (processes, seen):
        async with asyncio.timeout(240):
            await processes.start()
            [first] = await processes.reports()
            os.kill(first.pid, signal.SIGSTOP)
            await until(lambda: len(seen) == 2, 120.0)
            while not (reports := await processes.reports()):
                assert len(seen) == 2
        assert (reports[0].pid, psutil.pid_exists(first.pid)) == (seen[1].pid, False)


async def test_a_child_that_cannot_be_started_is_started_later_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its socket was never served again."""
    failures: list[OSError | RuntimeError] = [OSError(errno.EMFILE, "x"), OSError(errno.EAGAIN, "x"), RuntimeError("x")]
    tried, started = iter(failures), asyncio.Event()

    async def start(*_: object, **__: object) -> None:
        for failure in tried:
            raise failure
        started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    monkeypatch.setattr(parent_process, "RESTART_S", 0.001)
    listening = bind("127.0.0.1", 0, shared=True)
    before = len(os.listdir("/proc/self/fd"))
    processes = GatewayProcesses([], [listening], 0.0)
    starting = asyncio.create_task(processes.start())
    async with asyncio.timeout(30):
        await started.wait()
    starting.cancel()
    await asyncio.wait([starting])
    await processes.stop()
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(caplog.messages) == 1
    listening.close()


@pytest.mark.processes
async def test_a_child_that_hangs_at_its_start_is_killed(pool: FakePool) -> None:
    async with one_child(pool, SILENCE, start_s=3.0) as (processes, seen):
        starting = asyncio.create_task(processes.start())
        await until(lambda: bool(seen))
        os.kill(seen[0].pid, signal.SIGSTOP)
        await until(lambda: len(seen) > 1, 120.0)
        starting.cancel()
        assert not seen[0].is_running()


@pytest.mark.processes
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "hangs"])
async def test_a_start_that_never_succeeds_ends_and_says_which_child(pool: FakePool, ends: bool) -> None:
    # One that ends needs its time to import: killed before, it would have said nothing.
    start_s = 15.0 if ends else 2.0
    async with one_child(pool, SILENCE, start_s) as (processes, seen):
        if not ends:
            os.mkfifo(pool.root / "nobody-writes")
        processes._argv.append("--max-queued=none" if ends else f"--config={pool.root / 'nobody-writes'}")
        # The last of several may just have started, or been killed for its silence.
        why = "ended with 2" if ends else r"(pid \d+ does not answer|ended with -9)"
        within = f"do not serve after {2 * start_s + RESTART_S:g} s"
        async with asyncio.timeout(120):
            with pytest.raises(ProcessesDownError, match=rf"{within}: the one at place 0 \(.*{why}"):
                await processes.start()
        assert not any(process.is_running() for process in seen)


@pytest.mark.processes
async def test_a_gateway_that_is_told_to_stop_while_it_starts_stops(pool: FakePool) -> None:
    command = (sys.executable, "-m", "baton_gateway", "--listen=127.0.0.1:0", "--processes=2", *pool.flags)
    gateway = await asyncio.create_subprocess_exec(*command)
    try:
        process = psutil.Process(gateway.pid)
        # One that is stopped before it has become Baton would hold its parent in the middle of the fork.
        await until(lambda: [CHILD_VARIABLE in child.environ() for child in process.children()] == [True, True], 120.0)
        for child in process.children():
            child.suspend()
        gateway.terminate()
        async with asyncio.timeout(120):
            assert await gateway.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            gateway.kill()
