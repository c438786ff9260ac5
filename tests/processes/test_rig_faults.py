"""Faults of the chaos rig: each lasts its time, also where faults overlap, and what was there before comes back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from baton_testing.gateway.fake_worker import FakeWorker
from baton_testing.gateway.made_tokenizers import byte_level
from baton_testing.processes.child_process import Child
from baton_testing.processes.faulty_proxy import FaultyProxy
from baton_testing.processes.lying_worker import LyingWorker
from baton_testing.processes.shifted_clock import ShiftedClock
from baton_testing.processes.soft_limits import SoftLimits
from baton_testing.wire.raw_peer import gateway_peer
from baton_wire.errors import BadFieldsError
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.messages.gateway_link import Flip
from baton_wire.messages.values import Role

HOST = "127.0.0.1"


def test_the_lowest_of_two_limits_counts_until_its_end_and_the_first_value_comes_back(tmp_path: Path) -> None:
    child = Child("sleeper", ("-c", "import time; time.sleep(600)"), tmp_path)
    try:
        process, limits = psutil.Process(child.pid), SoftLimits()
        before = process.rlimit(psutil.RLIMIT_NOFILE)
        first, second = limits.lowered(process, psutil.RLIMIT_NOFILE, 20), contextlib.ExitStack()
        with first:
            second.enter_context(limits.lowered(process, psutil.RLIMIT_NOFILE, 30))
            assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == 20
        assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == 30
        second.close()
        assert process.rlimit(psutil.RLIMIT_NOFILE) == before
    finally:
        child.stop()


def test_a_limit_of_a_process_that_ended_meanwhile_is_no_error(tmp_path: Path) -> None:
    child = Child("sleeper", ("-c", "import time; time.sleep(600)"), tmp_path)
    with SoftLimits().lowered(psutil.Process(child.pid), psutil.RLIMIT_NOFILE, 20):
        child.stop()


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[tuple[FaultyProxy, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A proxy in front of a server that echoes its input, and a connection through it."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server, proxy = await asyncio.start_server(repeat, HOST, 0), FaultyProxy()
    port = await proxy.start(HOST, 0, (HOST, server.sockets[0].getsockname()[1]))
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        yield proxy, reader, writer
    finally:
        writer.close()
        await proxy.stop()
        server.close()


async def test_a_link_that_is_held_twice_moves_after_the_later_end() -> None:
    async with echo() as (proxy, reader, writer), asyncio.timeout(60.0):
        with proxy.held():
            with proxy.held(), proxy.slowed(0.001):
                pass
            writer.write(b"held")
            first_bytes = asyncio.create_task(reader.readexactly(4))
            await asyncio.wait([first_bytes], timeout=0.05)
            assert not first_bytes.done()
        assert await first_bytes == b"held"


def test_steps_of_the_clock_at_the_same_time_add_up(tmp_path: Path) -> None:
    try:
        clock = ShiftedClock(tmp_path)
    except FileNotFoundError as error:
        pytest.skip(str(error))

    def shift() -> int:
        return int(struct.unpack("l", (tmp_path / "clock.shift").read_bytes())[0])

    first = contextlib.ExitStack()
    first.enter_context(clock.shifted(3_600))
    with clock.shifted(-60):
        assert shift() == 3_540
        first.close()
        assert shift() == -60
    assert shift() == 0


class _WorstLies(random.Random):
    def random(self) -> float:
        return 0.0


async def test_a_lying_worker_sends_numbers_that_no_worker_may_send_and_goes_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    write_new_key(keys, "test")
    copied = FakeWorker(Role.DECODE, byte_level(), KeyDirectory(keys), lambda request: [])
    liar = LyingWorker(Role.DECODE, copied.hello(), byte_level().bundle(), copied.keys, _WorstLies())
    await liar.start()
    try:
        for _ in range(2):
            async with gateway_peer(f"http://{HOST}:{liar.port}", keys) as peer:
                with pytest.raises(BadFieldsError, match="Tokens"):
                    await peer.hear(Flip)  # which a worker never sends: everything is read
    finally:
        await liar.stop()
