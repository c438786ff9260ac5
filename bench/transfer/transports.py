"""The `tcp` transport's throughput on this machine, against a plain socket: `python -m bench transfer`.

The receiver is a process of its own: a real `TcpLanding` that asks a real `LandingRegion` about every PUT, and a thread
that reads messages from a plain socket into a buffer. The sender moves the same bytes through a real `TcpWriter`, or
with `sendall`; both ways a transfer ends when the receiver's acknowledgement is back. No checksums and no scatter.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

from bench.machine import this_machine
from bench.results import Cell, publish, spread

from baton_kv_transfer.handover import TransferConfig
from baton_kv_transfer.landing import ClaimRefusal, LandingRegion, LandingWindow
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import DataConnection, SocketConnection
from baton_kv_transfer.transports.seam import Write
from baton_kv_transfer.transports.tcp import SOCKET_BUFFER_BYTES, TcpLanding, TcpWriter
from baton_wire.session import AlteredFrames, Session

ROUNDS = 5
SIZES = tuple(1 << bits for bits in (14, 18, 20, 22, 24, 26))
"""16 KiB to 64 MiB."""
REGION_BYTES = SIZES[-1]
CONFIG = TransferConfig()
LANES = 4
"""Measured besides one lane, the default."""
KEY = b"k" * 32
PEER = b"bench-prefill-01"
COLUMNS = ("bytes", "plain socket GB/s", "tcp, 1 lane GB/s", f"tcp, {LANES} lanes GB/s")
RATIO = "tcp, 1 lane / plain"
ROUND_BYTES, MAX_REPEATS = 16 << 20, 50
"""A round repeats a transfer until it has moved `ROUND_BYTES`, at most `MAX_REPEATS` times."""

Transfer = Callable[[int], Awaitable[None]]


class OneAtATime:
    """Grants the whole region to each transfer that it has not seen yet, in place of the one before."""

    def __init__(self) -> None:
        self._landing = LandingRegion(REGION_BYTES)
        self._last = 0

    def claim(self, peer: bytes, transfer: int, offset: int, length: int) -> LandingWindow | ClaimRefusal:
        if transfer > self._last:
            if self._last:
                self._landing.release(self._last)
            self._landing.grant(transfer, peer, REGION_BYTES, REGION_BYTES)
            self._last = transfer
        return self._landing.claim(peer, transfer, offset, length)

    def arrived(self, peer: bytes, window: LandingWindow) -> None:
        self._landing.arrived(window)

    def breached(self, peer: bytes, detail: str) -> None:
        print(f"receiver: {detail}", file=sys.stderr)


# The receiver ---------------------------------------------------------------------------------------------------------


def listener() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    return sock


def receive_plainly(server: socket.socket) -> None:
    """Per message: 8 bytes of length, the bytes, one byte back."""
    sock, _ = server.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer, header = memoryview(bytearray(REGION_BYTES)), memoryview(bytearray(8))
    while fill(sock, header):
        fill(sock, buffer[: int.from_bytes(header)])
        sock.sendall(b"!")


def fill(sock: socket.socket, target: memoryview) -> bool:
    """Read until `target` is full. False when the sender closed."""
    while target:
        count = sock.recv_into(target)
        if count == 0:
            return False
        target = target[count:]
    return True


async def receive() -> None:
    """Serve until standard input closes."""
    landing = TcpLanding(memoryview(bytearray(REGION_BYTES)), OneAtATime())
    lanes, plain = listener(), listener()
    lanes.setblocking(False)
    threading.Thread(target=receive_plainly, args=(plain,), daemon=True).start()
    print(lanes.getsockname()[1], plain.getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()

    async def accept() -> None:
        while True:
            sock, _ = await loop.sock_accept(lanes)
            landing.attach(data_connection(sock), PEER)

    accepting = asyncio.create_task(accept())
    await loop.run_in_executor(None, sys.stdin.buffer.read)
    accepting.cancel()
    landing.drop(PEER)


# The sender -----------------------------------------------------------------------------------------------------------


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def data_connection(sock: socket.socket) -> DataConnection:
    """With the same keys at both ends."""
    return DataConnection(SocketConnection(sock), Session(KEY, KEY, AlteredFrames()))


def plainly(port: int, source: memoryview) -> Transfer:
    sock = connect(port)

    async def transfer(size: int) -> None:
        sent = sock.sendmsg([size.to_bytes(8), source[:size]])
        sock.sendall(source[max(0, sent - 8) : size])
        if sock.recv(1) != b"!":
            raise EOFError("the receiver is gone")

    return transfer


class Numbers:
    """Transfer numbers, never used twice in the receiver."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


def through_lanes(connections: list[DataConnection], source: memoryview, numbers: Numbers) -> Transfer:
    """Writes as large as the carrier makes them, all of a transfer started at once."""
    writer = TcpWriter(connections, lambda detail: print(f"sender: {detail}", file=sys.stderr))

    async def transfer(size: int) -> None:
        loop, number, ends = asyncio.get_running_loop(), numbers.next(), []
        for start in range(0, size, CONFIG.max_put_bytes):
            extent = Extent(start, min(CONFIG.max_put_bytes, size - start))
            ends.append(loop.create_future())
            writer.write(Write(number, source, (extent,), (extent,)), ends[-1].set_result)
        for detail in await asyncio.gather(*ends):
            if detail is not None:
                raise EOFError(detail)

    return transfer


async def rate(transfer: Transfer, size: int) -> float:
    """Bytes per nanosecond, which is GB/s."""
    repeats = max(1, min(ROUND_BYTES // size, MAX_REPEATS))
    begin = time.perf_counter_ns()
    for _ in range(repeats):
        await transfer(size)
    return repeats * size / (time.perf_counter_ns() - begin)


async def measure(lanes_port: int, plain_port: int, rounds: int) -> list[dict[str, Cell]]:
    source, numbers = memoryview(bytearray(REGION_BYTES)), Numbers()
    ways = [plainly(plain_port, source)]
    for count in (1, LANES):
        connections = [data_connection(connect(lanes_port)) for _ in range(count)]
        ways.append(through_lanes(connections, source, numbers))
    rows: list[dict[str, Cell]] = []
    for size in SIZES:
        rates: list[list[float]] = [[] for _ in ways]
        for round_number in range(rounds + 1):
            order = range(len(ways)) if round_number % 2 else reversed(range(len(ways)))
            for way in order:
                reached = await rate(ways[way], size)
                if round_number:  # the first round warms up
                    rates[way].append(reached)
        ratio = spread([lane / plain for plain, lane in zip(rates[0], rates[1], strict=True)])
        cells = [f"{size:,}", *(str(spread(way_rates)) for way_rates in rates), str(ratio)]
        rows.append(dict(zip((*COLUMNS, RATIO), cells, strict=True)))
    return rows


def run(rounds: int) -> None:
    machine = this_machine()
    command = [sys.executable, "-m", "bench.transfer.transports", "--receive"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        lanes_port, plain_port = (int(port) for port in receiver.stdout.readline().split())
        rows = asyncio.run(measure(lanes_port, plain_port, rounds))
        receiver.stdin.close()
    notes = [
        f"Median (least–greatest) of {rounds} interleaved rounds, sender and receiver a process each; a transfer ends "
        f"when the receiver has taken all in, the next begins then; PUTs of at most {CONFIG.max_put_bytes:,} bytes, "
        f"socket buffers of {SOCKET_BUFFER_BYTES:,} both ways."
    ]
    publish("transfer", machine, notes, (*COLUMNS, RATIO), rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["--receive"]:
        asyncio.run(receive())
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--rounds", type=int, default=ROUNDS)
        run(parser.parse_args().rounds)
