"""NIXL and ucxx as ways of `transports`: each a pair of processes, because UCX's lanes are a process's setting.

The parent names a size on the sender's standard input and reads the reached GB/s from its standard output.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import numpy

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import SocketConnection
from baton_kv_transfer.transports.seam import Write
from baton_kv_transfer.transports.ucx.binding import UcxAgent, host_memory
from baton_kv_transfer.transports.ucx.descriptor import unpack
from baton_kv_transfer.transports.ucx.landing import UcxLanding
from baton_kv_transfer.transports.ucx.thread import UcxThread
from baton_kv_transfer.transports.ucx.writer import UcxWriter, connect

EPOCH = b"bench-nixl-epoch"
REGION_BYTES = 64 << 20
ROUND_BYTES, MAX_REPEATS = 16 << 20, 50
"""A round repeats a transfer until it moved so much, but not more often than that."""
MARK = "="

Transfer = Callable[[int], Awaitable[None]]


async def rate(transfer: Transfer, size: int) -> float:
    """Bytes per nanosecond, which is GB/s."""
    repeats = max(1, min(ROUND_BYTES // size, MAX_REPEATS))
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        await transfer(size)
    return repeats * size / (time.perf_counter_ns() - begin)


class Way:
    """A sender process and its receiver."""

    def __init__(self, kind: str, lanes: str, path: Path | None = None) -> None:
        """`path`: where packages lie that are not installed here."""
        environment = {**os.environ, "UCX_TLS": lanes, "UCX_WARN_UNUSED_ENV_VARS": "n"}
        if path is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "bench.transfer.ucx", kind]
        self._receiver = self._start([*command, "receive", str(theirs.fileno())], theirs, environment)
        self._sender = self._start([*command, "send", str(ours.fileno())], ours, environment)
        ours.close()
        theirs.close()
        self.said = self._line()
        """What the sender says once it is connected: its lane."""

    def _start(self, command: list[str], end: socket.socket, environment: dict[str, str]) -> subprocess.Popen[str]:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, pass_fds=[end.fileno()], env=environment, **pipes)

    def _line(self) -> str:
        for line in pipe(self._sender.stdout):
            if line.startswith(MARK):  # libraries print too
                return line.removeprefix(MARK).strip()
        self.close()
        raise EOFError("a sender ended")

    async def rate(self, size: int) -> float:
        sender = pipe(self._sender.stdin)
        sender.write(f"{size}\n")
        sender.flush()
        return float(await asyncio.to_thread(self._line))

    def close(self) -> None:
        for process in (self._sender, self._receiver):
            process.kill()
            process.wait()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


async def answer(transfer: Transfer, lane: str) -> None:
    """Serve the parent until standard input closes."""
    print(MARK, lane, flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(MARK, await rate(transfer, int(line)), flush=True)


# NIXL, as workers use it ----------------------------------------------------------------------------------------------


async def receive_nixl(end: socket.socket) -> None:
    landing = UcxLanding(memoryview(mmap.mmap(-1, REGION_BYTES)), EPOCH, lambda _: None)
    await landing.start()
    await asyncio.get_running_loop().sock_sendall(end, landing.descriptor)
    await asyncio.to_thread(sys.stdin.read)  # until the parent is done, or gone


async def send_nixl(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    target = unpack(await loop.sock_recv(end, 1 << 16), EPOCH, REGION_BYTES)
    source = memoryview(mmap.mmap(-1, REGION_BYTES))
    source[::4096] = bytes(len(source[::4096]))
    thread = UcxThread(lambda: UcxAgent(f"bench-{secrets.token_hex(8)}", progress=False))
    await thread.start()
    await thread.run(lambda agent: agent.register(host_memory(source)))
    lane = await thread.run(connect(target))
    writer = UcxWriter(thread, target, SocketConnection(end), lambda _: True, print, lane)
    largest = TransferConfig().max_put_bytes

    async def transfer(size: int) -> None:
        """Writes as large as the carrier makes them, all of a transfer started at once."""
        ends: list[asyncio.Future[str | None]] = []
        for start in range(0, size, largest):
            extent = (Extent(start, min(largest, size - start)),)
            ends.append(loop.create_future())
            writer.write(Write(1, source, extent, extent), ends[-1].set_result)
        for detail in await asyncio.gather(*ends):
            if detail is not None:
                raise EOFError(detail)

    await transfer(1 << 20)
    await answer(transfer, writer.lane)


# ucxx, two-sided ------------------------------------------------------------------------------------------------------


async def receive_ucxx(end: socket.socket) -> None:
    import ucxx  # type: ignore[import-not-found]

    async def serve(endpoint: Any) -> None:
        header, buffer = numpy.zeros(1, numpy.uint64), numpy.zeros(REGION_BYTES, numpy.uint8)
        taken = numpy.ones(1, numpy.uint8)
        while True:
            await endpoint.recv(header)
            await endpoint.recv(buffer[: int(header[0])])
            await endpoint.send(taken)

    listener = ucxx.create_listener(serve)
    await asyncio.get_running_loop().sock_sendall(end, listener.port.to_bytes(2))
    await asyncio.to_thread(sys.stdin.read)  # until the parent is done, or gone


async def send_ucxx(end: socket.socket) -> None:
    import ucxx

    port = int.from_bytes(await asyncio.get_running_loop().sock_recv(end, 2))
    endpoint = await ucxx.create_endpoint("127.0.0.1", port)
    source, taken = numpy.zeros(REGION_BYTES, numpy.uint8), numpy.zeros(1, numpy.uint8)

    async def transfer(size: int) -> None:
        await endpoint.send(numpy.array([size], numpy.uint64))
        await endpoint.send(source[:size])
        await endpoint.recv(taken)

    await transfer(1 << 20)
    await answer(transfer, f"ucxx {ucxx.__version__}")


if __name__ == "__main__":
    connected = socket.socket(fileno=int(sys.argv[3]))
    connected.setblocking(False)
    runs = {
        ("nixl", "receive"): receive_nixl,
        ("nixl", "send"): send_nixl,
        ("ucxx", "receive"): receive_ucxx,
        ("ucxx", "send"): send_ucxx,
    }
    asyncio.run(runs[sys.argv[1], sys.argv[2]](connected))
