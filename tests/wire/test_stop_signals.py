"""The effect of each signal on a process that serves. The loop calls handlers, as in a process."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from baton_wire.stop_signals import WITHOUT_MEANING, handle_stop_signals

HUP, TERM, INT = signal.SIGHUP, signal.SIGTERM, signal.SIGINT


@pytest.fixture
def handlers() -> Iterator[None]:
    """Whatever a test sets is undone."""
    numbers = (HUP, TERM, INT, *WITHOUT_MEANING)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("sent", "stops"),
    [
        ((TERM,), 1),
        ((INT,), 1),
        ((HUP,), 1),
        ((HUP, HUP, HUP), 1),  # a shell's, and the kernel's when the shell ends
        ((TERM, HUP), 1),  # a service manager's
        ((HUP, TERM, HUP), 1),
        ((TERM, TERM), 2),
        ((INT, INT), 2),
        ((HUP, TERM, TERM), 2),
        ((TERM, HUP, TERM), 2),
        ((signal.SIGUSR1, signal.SIGUSR2), 0),
    ],
)
async def test_a_hang_up_starts_a_drain_and_never_hurries_one(sent: tuple[signal.Signals, ...], stops: int) -> None:
    asked: list[None] = []
    loop = asyncio.get_running_loop()
    handle_stop_signals(loop, lambda: asked.append(None), lambda: bool(asked))
    for number in sent:
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.005)
    for number in (HUP, TERM, INT):
        loop.remove_signal_handler(number)
    assert len(asked) == stops


@pytest.mark.usefixtures("handlers")
async def test_a_process_that_is_to_survive_its_terminal_does() -> None:
    signal.signal(HUP, signal.SIG_IGN)
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for _ in range(2):  # also when another library's handlers made it necessary again
        handle_stop_signals(loop, asked.set, asked.is_set)
    os.kill(os.getpid(), HUP)
    await asyncio.sleep(0.005)
    assert not asked.is_set()
    assert signal.getsignal(HUP) is signal.SIG_IGN
    for number in (TERM, INT):
        loop.remove_signal_handler(number)
