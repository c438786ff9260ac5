"""A real gateway that is killed in the middle of a batch, again and again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from baton_testing.gateway.batch_client import answers, begin, client_of, line, until_answered, until_ended
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.processes.child_process import Child, get_status, wait_for
from baton_testing.processes.deployment import START_S

pytestmark = pytest.mark.processes
LINES = 100


def started(child: Child, announced: Path) -> int:
    """Wait until the gateway is routable; returns its port. Raises NotReadyError."""
    port: int = child.await_file(announced, START_S)["port"]
    url = f"http://127.0.0.1:{port}/health/routable"
    wait_for(lambda: get_status(url, 2.0) == 200 or None, "the gateway to be routable", START_S)
    return port


async def test_after_kills_in_the_middle_of_a_batch_each_line_is_answered_exactly_once(
    pool: FakePool, tmp_path: Path
) -> None:
    batch_id, completed = "", 0
    for number in range(3):
        for worker in pool.workers:
            worker.step_s = 0.1 if number < 2 else 0.0
        announced = tmp_path / f"{number}.announced"
        argv = ("-m", "baton_gateway", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", f"--announce={announced}")
        batches = (f"--batch-folder={tmp_path / 'batches'}", "--batch-concurrency=4")
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        child = Child(f"gateway-{number}", (*argv, *pool.flags, *batches), tmp_path, paths)
        try:
            port = await asyncio.to_thread(started, child, announced)
            async with client_of(f"http://127.0.0.1:{port}/v1") as client:
                if not batch_id:
                    batch_id = (await begin(client, "".join(line(f"q{at}") for at in range(LINES)))).id
                if number < 2:
                    noted = await until_answered(client, batch_id, completed + 5)
                    assert noted.status == "in_progress", "the kill comes in the middle"
                    assert noted.request_counts is not None
                    completed = noted.request_counts.completed
                else:
                    ended = await until_ended(client, batch_id)
                    assert ended.request_counts is not None
                    assert (ended.status, ended.request_counts.completed) == ("completed", LINES)
                    assert ended.error_file_id is None
                    output = await answers(client, ended.output_file_id)
                    assert set(output) == {f"q{at}" for at in range(LINES)}
        finally:
            child.send(signal.SIGKILL)
            await asyncio.to_thread(child.wait, 30.0)
