"""The gateway's process prepares its event loop before it serves."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from baton_gateway import __main__ as program
from baton_gateway.settings import Settings, parse_settings
from baton_wire.stop_signals import WITHOUT_MEANING

FLAGS = ("--keys=k", "--prefill-discovery=file:p", "--decode-discovery=file:d", "--listen=127.0.0.1:0")


async def test_threads_give_the_interpreter_back_to_the_loop_before_a_client_could_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intervals: list[float] = []

    async def serve(settings: Settings, argv: list[str], stopping: asyncio.Event) -> None:
        intervals.append(sys.getswitchinterval())

    monkeypatch.setattr(program, "_serve_alone", serve)
    loop = asyncio.get_running_loop()
    interval, handler = sys.getswitchinterval(), loop.get_exception_handler()
    try:
        assert await program._run(parse_settings(list(FLAGS)), []) == 0
    finally:
        sys.setswitchinterval(interval)
        loop.set_exception_handler(handler)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        for number in WITHOUT_MEANING:
            signal.signal(number, signal.SIG_DFL)
    assert intervals == [pytest.approx(program.SWITCH_INTERVAL_S)]
    assert intervals[0] < interval, "the interpreter's own"
