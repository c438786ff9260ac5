"""Processes apart of gateways in the test's own process: forks, since each of hundreds of gateways has two."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from baton_gateway import process_apart
from baton_testing.processes.prepared import Forked, Prepared

APART = ("baton_gateway.text.template_process", "baton_gateway.shapes.shape_process")


class ForkedApart:
    """What `ProcessApart` needs of `asyncio.subprocess.Process`."""

    def __init__(self, forked: Forked, stdin: asyncio.StreamWriter) -> None:
        self.pid = forked.pid
        self.stdin = stdin
        self.stdout = asyncio.StreamReader()
        self._forked = forked
        self._reading: asyncio.ReadTransport | None = None

    async def read(self, pipe: int) -> None:
        reader = asyncio.StreamReaderProtocol(self.stdout)
        loop = asyncio.get_running_loop()
        self._reading, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(pipe, "rb", buffering=0))

    @property
    def returncode(self) -> int | None:
        return self._forked.poll()

    def kill(self) -> None:
        self._forked.kill()

    async def wait(self) -> int:
        if not self.stdin.transport.is_closing():  # it closes by itself when the other end is gone
            self.stdin.transport.abort()
        if self._reading is not None:
            self._reading.close()
        while True:
            await asyncio.sleep(0.001)  # the server tells of an end by a pipe that no loop watches
            if (code := self.returncode) is not None:
                return code


async def _run_forked(prepared: Prepared, module: str) -> ForkedApart:
    """Whoever is cancelled meanwhile leaves no process behind, and no pipe."""
    given, gives = os.pipe()
    reads, said = os.pipe()
    try:
        forked = prepared.start(("-m", module), said, 2, given=given)
    finally:
        os.close(given)
        os.close(said)
    connecting = asyncio.create_task(_connected(forked, gives, reads))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        process = await connecting
        process.kill()
        await process.wait()
        raise


async def _connected(forked: Forked, gives: int, reads: int) -> ForkedApart:
    loop = asyncio.get_running_loop()
    flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: flow, os.fdopen(gives, "wb", buffering=0))
    process = ForkedApart(forked, asyncio.StreamWriter(transport, flow, None, loop))
    await process.read(reads)
    return process


@contextmanager
def apart_is_forked() -> Iterator[None]:
    """Within, for what can be forked."""
    run = process_apart.run_module
    with Prepared(APART) as prepared:

        async def run_module(module: str) -> ForkedApart | asyncio.subprocess.Process:
            return await (_run_forked(prepared, module) if prepared.can_start(("-m", module)) else run(module))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_apart, "run_module", run_module)
            yield
