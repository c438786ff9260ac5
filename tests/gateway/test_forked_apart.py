"""Forks that replace a gateway's helper processes in tests: they end as the real ones do."""

from __future__ import annotations

import os
import signal

import psutil

from baton_gateway.structured_outputs.format_compiler import FormatCompiler
from baton_gateway.structured_outputs.output_format import choice_format
from baton_testing.gateway.gateway_process import until


async def test_one_that_died_while_nobody_asked_is_reaped_and_replaced() -> None:
    compiler = FormatCompiler()
    await compiler.start()
    pid = compiler._lane.process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(pid))
    assert (await compiler.compile(choice_format(["a"], "f"), "one")).definition
    assert compiler._lane.process.pid != pid
    await compiler.stop()
