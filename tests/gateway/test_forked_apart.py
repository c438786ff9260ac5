"""Forks that stand for a gateway's processes apart in tests: they end as those do."""

from __future__ import annotations

import asyncio
import os
import signal

from baton_gateway.shapes.answer_shape import choice_shape
from baton_gateway.shapes.shape_compiler import ShapeCompiler
from baton_testing.gateway.forked_apart import ForkedApart


async def test_one_that_died_while_nobody_asked_is_waited_for_and_replaced() -> None:
    """Its pipes close by themselves before anybody waits for it."""
    compiler = ShapeCompiler()
    await compiler.start()
    forked = compiler._process._process
    assert isinstance(forked, ForkedApart)
    os.kill(forked.pid, signal.SIGKILL)
    for _ in range(3000):
        await asyncio.sleep(0.01)
        if forked.stdin.transport.is_closing():
            break
    async with asyncio.timeout(30):
        assert await forked.wait() == -signal.SIGKILL
    assert (await compiler.compile(choice_shape(["a"], "f"), "one")).definition
    assert compiler._process._process is not forked
    await compiler.stop()
