"""A helper process ends when it should, whatever it was doing, and leaves nothing running."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psutil
import pytest

from baton_gateway.errors import ProcessNotStartedError
from baton_gateway.helper_processes import piped_process
from baton_gateway.helper_processes.helper_process import HelperProcess, NoAnswer
from baton_gateway.helper_processes.processor_time import ProcessorAllowance
from baton_testing.gateway.gateway_process import until
from baton_testing.gateway.helper_bytes import at_byte
from baton_testing.processes import prepared as processes
from baton_testing.processes.prepared import Prepared

MODULE = "baton_testing.gateway.answering_module"
LARGE = b"bytes 1000000"
CHUNK = 64 << 10


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    support = os.pathsep.join([str(Path(processes.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch, Prepared([MODULE], extra={"PYTHONPATH": support}) as prepared:
        patch.setenv("PYTHONPATH", support)
        run = piped_process.run_module

        def run_module(module: str, stdin: int, stdout: int, stderr: int) -> piped_process.StartedProcess:
            if module == MODULE and prepared.can_start(("-m", module)):
                return prepared.start(("-m", module), stdout, stderr, given=stdin)
            return run(module, stdin, stdout, stderr)

        patch.setattr(piped_process, "run_module", run_module)
        yield


@pytest.fixture
async def helper() -> AsyncIterator[HelperProcess]:
    helper = HelperProcess(MODULE, b"hello")
    yield helper
    await helper.kill()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_an_answer_is_cancelled_at_every_64_kib_and_nothing_is_left(
    helper: HelperProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.11's own processes are waited for through their pipes: for ever, if no one reads them."""
    monkeypatch.setattr(piped_process, "BUFFER_BYTES", CHUNK)
    await helper.start()
    before, tasks, pids = descriptors(), asyncio.all_tasks(), []
    for place in range(1, 1_000_000, CHUNK):
        assert helper.pid is not None
        pids.append(helper.pid)
        asked = asyncio.create_task(helper.ask(LARGE, 30.0))
        at_byte(helper, place, asked.cancel)
        await asyncio.wait([asked], timeout=30.0)
        assert asked.cancelled()
        assert not helper.is_running
        assert await helper.ask(b"bytes 3", 30.0) == b"xxx"
        assert await helper.read_answer(30.0) == b"done"
    await until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    await until(lambda: descriptors() <= before)
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
async def test_a_process_is_killed_in_the_middle_of_an_answer(helper: HelperProcess, is_read: bool) -> None:
    await helper.start()
    process = helper._process
    assert process is not None
    come = asyncio.Event()
    at_byte(helper, CHUNK, come.set)
    asked = asyncio.create_task(helper.ask(b"bytes 8000000", 30.0))
    await come.wait()
    if not is_read:
        os.kill(process.pid, signal.SIGSTOP)
    killing = asyncio.create_task(helper.kill())
    await asyncio.sleep(0)
    killing.cancel()
    assert await asked is NoAnswer.KILLED
    assert not psutil.pid_exists(process.pid)


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("rounds", range(14))
async def test_a_start_ends_in_any_round_of_the_loop_and_nothing_is_left(
    helper: HelperProcess, rounds: int, is_cancelled: bool
) -> None:
    loop, faults = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    before, tasks = descriptors(), asyncio.all_tasks()
    starting = asyncio.create_task(helper.start())
    for _ in range(rounds):
        await asyncio.sleep(0)
    if is_cancelled:
        starting.cancel()
    await helper.kill()
    await asyncio.gather(starting, return_exceptions=True)
    await helper.kill()
    await until(lambda: descriptors() == before and asyncio.all_tasks() == tasks)
    assert faults == []
    assert await helper.ask(b"bytes 3", 30.0) == b"xxx"


@pytest.mark.parametrize(
    ("question", "limit_s", "expected"),
    [
        (b"spin", 0.5, NoAnswer.TOO_SLOW),  # 0.1 s is few ticks of its clock where the machine is busy
        (b"sleep", 0.1, NoAnswer.STALLED),
        (b"end", 30.0, NoAnswer.ENDED),
        (b"kill", 30.0, NoAnswer.KILLED),
    ],
)
async def test_a_question_without_an_answer_says_why(
    helper: HelperProcess, question: bytes, limit_s: float, expected: NoAnswer
) -> None:
    await helper.start()
    pid = helper.pid
    assert pid is not None
    assert await helper.ask(question, limit_s) is expected
    assert not helper.is_running
    await until(lambda: not psutil.pid_exists(pid))
    assert await helper.ask(b"hello", 30.0) == b"done"


async def test_a_process_that_died_while_nobody_asked_is_reaped_and_replaced(helper: HelperProcess) -> None:
    await helper.start()
    pid = helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(pid) and not helper.is_running)
    assert await helper.ask(b"hello", 30.0) == b"done"
    assert helper.pid != pid


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
async def test_a_process_that_cannot_be_forked_leaves_no_descriptor(
    helper: HelperProcess, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> piped_process.StartedProcess:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(piped_process, "run_module", refused)
        before = descriptors()
        with pytest.raises(ProcessNotStartedError, match=os.strerror(number)):
            await helper.ask(b"hello", 30.0)
        assert descriptors() == before
    assert await helper.ask(b"hello", 30.0) == b"done"


async def test_without_descriptors_no_process_starts_and_afterwards_one_does(helper: HelperProcess) -> None:
    before, limits = descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 20, limits[1]))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(6):
            with pytest.raises(ProcessNotStartedError):
                await helper.start()
            os.close(taken.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in taken:
            os.close(descriptor)
    assert descriptors() == before
    assert await helper.ask(b"hello", 30.0) == b"done"


async def test_a_module_that_does_not_come_up_is_no_process() -> None:
    helper = HelperProcess("baton_testing.no_such_module", b"hello")
    with pytest.raises(ProcessNotStartedError, match="it ended"):
        await helper.start()
    assert helper.pid is None


async def test_what_a_process_writes_is_said_once_a_second(
    helper: HelperProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        assert await helper.ask(b"write 500", 30.0) == b"written"
        assert await helper.read_answer(30.0) == b"done"
    await until(lambda: bool(caplog.messages))
    await asyncio.sleep(2 * piped_process.QUOTE_AFTER_S)
    [message] = caplog.messages
    assert f"{MODULE} writes: " in message
    assert message.count("panicked") > 1
    assert len(message) < 2 * piped_process.QUOTED_CHARS


def judge(spent_s: Callable[[float], float | None]) -> tuple[float, bool]:
    """The time at which a process that may compute for 1 s is given up, and whether for being slow."""
    now, allowance = 0.0, ProcessorAllowance(1.0, 0.0, 0.0)
    more_s: float | None = 1.0
    while more_s is not None:
        now += more_s
        more_s = allowance.next_check_s(now, spent_s(now))
    return now, allowance.is_used_up


@pytest.mark.parametrize(
    ("spent_s", "expected"),
    [
        (lambda now: now, (1.0, True)),
        (lambda now: 0.0, (1.0, False)),
        (lambda now: min(now, 0.5), (1.5, False)),
        (lambda now: 0.5 * now, (2.0, True)),
        (lambda now: 0.05 * now, (5.0, False)),
        (lambda now: None, (1.0, False)),
    ],
    ids=["computes", "is stopped", "is stopped half-way", "shares a processor", "is starved", "is gone"],
)
def test_a_process_has_its_limit_in_processor_time(
    spent_s: Callable[[float], float | None], expected: tuple[float, bool]
) -> None:
    at_s, is_used_up = judge(spent_s)
    assert (round(at_s, 1), is_used_up) == expected
