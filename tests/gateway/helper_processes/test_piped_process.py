"""A piped process that is killed while its pipes are being connected: a wait for its end covers its pipes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator

import pytest

from baton_gateway.helper_processes.piped_process import PipedProcess
from baton_wire.listening.complaints import Complaints

ROUNDS = 14
"""More than connecting three pipes takes."""


class ReapedAtOnce:
    """A process that has ended by the time that it is killed."""

    pid = 1

    def poll(self) -> int | None:
        return -9

    def kill(self) -> None:
        pass


@pytest.fixture
def pipes() -> Iterator[tuple[list[int], list[int]]]:
    """Our ends of stdin, stdout and stderr, and the process's ends."""
    (their_stdin, our_stdin), (our_stdout, their_stdout), (our_stderr, their_stderr) = (os.pipe() for _ in range(3))
    theirs = [their_stdin, their_stdout, their_stderr]
    yield [our_stdin, our_stdout, our_stderr], theirs
    for end in theirs:
        os.close(end)


def is_open(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return True
    return False


@pytest.mark.parametrize("rounds", range(1, ROUNDS))
async def test_a_killed_process_is_waited_for_until_its_pipes_are_closed(
    pipes: tuple[list[int], list[int]], rounds: int
) -> None:
    """A loop that ended earlier would leave a pipe open for the garbage collector to complain about."""
    (stdin, stdout, stderr), _ = pipes
    complaints = Complaints(logging.getLogger(__name__))
    process = PipedProcess(ReapedAtOnce(), (stdin, stdout, stderr), "helper", complaints)
    connecting = asyncio.create_task(process.connect())
    for _ in range(rounds):
        await asyncio.sleep(0)
    process.kill()
    await process.wait(30.0)
    open_pipes = [pipe for pipe in (stdin, stdout, stderr) if is_open(pipe)]
    await connecting
    await asyncio.sleep(0)
    assert not open_pipes


async def test_a_process_that_was_never_connected_is_closed_when_it_is_killed(
    pipes: tuple[list[int], list[int]],
) -> None:
    (stdin, stdout, stderr), _ = pipes
    process = PipedProcess(ReapedAtOnce(), (stdin, stdout, stderr), "helper", Complaints(logging.getLogger(__name__)))
    process.kill()
    await process.wait(30.0)
    assert not any(map(is_open, (stdin, stdout, stderr)))
