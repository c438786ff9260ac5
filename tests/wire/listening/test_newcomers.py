"""Connections between their accept and their first byte: how many a round of the loop takes, and whose turn it is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web, web_protocol

from baton_wire.fair_loop.charging import CHARGE
from baton_wire.fair_loop.fair_queue import Account
from baton_wire.listening import bounded_server
from baton_wire.listening.bounded_server import ACCEPTS_A_ROUND, BoundedServer
from baton_wire.listening.connection_book import ConnectionLimits
from baton_wire.listening.newcomers import BEGINS_A_ROUND, ListenerAccounts
from baton_wire.listening.sockets import bind

LOG = logging.getLogger("test.newcomers")
GET = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
HALF = b"GET / HT"
RESET = struct.pack("ii", 1, 0)
MANY = 300


class Watched(BoundedServer):
    """A server that counts, by round of the loop, what it accepts and what it hands to the HTTP parser."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(self._hello, limits, LOG)
        self.listening = bind("127.0.0.1", 0)
        self.listening.listen(2 * MANY)
        self.port: int = self.listening.getsockname()[1]
        self.round = 0
        self.accepted: Counter[int] = Counter()
        self.begun: list[tuple[int, str]] = []
        """The round and the address of each."""

    async def __aenter__(self) -> Watched:
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept

        async def counted(listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
            accepted: tuple[socket.socket, tuple[str, int]] = await accept(listening)
            self.accepted[self.round] += 1
            return accepted

        loop.sock_accept = counted  # type: ignore[method-assign,assignment]
        self.begin(self.listening)
        self._counting = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()
        await self.end(0.1)

    def connection_made(self, handler: web_protocol.RequestHandler, transport: asyncio.Transport) -> None:
        address, _ = transport.get_extra_info("peername") or ("gone", 0)
        self.begun.append((self.round, address))
        super().connection_made(handler, transport)

    @property
    def begun_by_round(self) -> Counter[int]:
        return Counter(number for number, _ in self.begun)

    async def _count(self) -> None:
        while True:
            self.round += 1
            await asyncio.sleep(0)

    async def _hello(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hello")


@contextlib.contextmanager
def clients(port: int, count: int, sends: bytes, address: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """Connected by the kernel, whether or not anybody has accepted them."""
    connected = []
    try:
        for _ in range(count):
            client = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            connected.append(client)
            client.sendall(sends)
        yield connected
    finally:
        for client in connected:
            client.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - looked at in every round of the loop
            await asyncio.sleep(0)


async def until_begun(server: Watched, count: int) -> None:
    await until(lambda: len(server.begun) >= count)


async def until_held(server: Watched, count: int) -> None:
    await until(lambda: server.num_connections == count)


def answer_to(client: socket.socket) -> bytes:
    client.settimeout(60)
    return client.recv(1 << 12)


async def test_a_round_of_the_loop_accepts_and_begins_few_of_many_connections() -> None:
    server = Watched(ConnectionLimits(4 * MANY))
    with clients(server.port, MANY, GET) as flood:
        async with server:
            await until_begun(server, MANY)
            assert max(server.accepted.values()) <= ACCEPTS_A_ROUND
            assert max(server.begun_by_round.values()) <= BEGINS_A_ROUND
            answers = await asyncio.gather(*(asyncio.to_thread(answer_to, client) for client in flood))
            assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)


async def test_a_connection_above_its_sources_bound_counts_in_its_round_too() -> None:
    server = Watched(ConnectionLimits(4 * MANY, per_address=1))
    with clients(server.port, MANY, GET):
        async with server:
            await until(lambda: server.accepted.total() == MANY)
            assert max(server.accepted.values()) <= ACCEPTS_A_ROUND


async def test_a_newcomer_begins_before_what_waits_of_a_source_with_many() -> None:
    server = Watched(ConnectionLimits(4 * MANY))
    with clients(server.port, ACCEPTS_A_ROUND, GET), clients(server.port, 1, GET, "127.0.0.2"):
        async with server:
            await until_begun(server, ACCEPTS_A_ROUND + 1)
            addresses = [address for _, address in server.begun]
            assert addresses.index("127.0.0.2") < 3 * BEGINS_A_ROUND


async def test_a_connection_begins_with_its_first_byte_and_counts_before() -> None:
    async with Watched(ConnectionLimits(MANY)) as server:
        with clients(server.port, 20, b"") as silent, clients(server.port, 1, GET):
            await until_begun(server, 1)
            await until_held(server, 20)
            assert len(server.begun) == 1
            silent[7].sendall(GET)
            await until_begun(server, 2)
            assert (await asyncio.to_thread(answer_to, silent[7])).startswith(b"HTTP/1.1 200")
        await until_held(server, 0)
        assert len(server.begun) == 2


async def test_a_silent_connection_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_server, "HEAD_S", 0.02)
    monkeypatch.setattr(bounded_server, "LOOK_S", 0.01)
    async with Watched(ConnectionLimits(MANY)) as server:
        with clients(server.port, 3, b"") as silent:
            assert await asyncio.gather(*(asyncio.to_thread(answer_to, client) for client in silent)) == [b""] * 3
            await until_held(server, 0)
        assert server.begun == []


async def test_a_client_that_left_while_it_waited_costs_no_turn() -> None:
    server = Watched(ConnectionLimits(4 * MANY))
    with clients(server.port, 60, HALF) as gone, clients(server.port, 1, GET, "127.0.0.2") as [stays]:
        for client in gone:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        async with server:
            assert (await asyncio.to_thread(answer_to, stays)).startswith(b"HTTP/1.1 200")
            await until_held(server, 0)
            assert [address for _, address in server.begun] == ["127.0.0.2"]


async def test_a_server_that_ends_closes_whoever_waits() -> None:
    server = Watched(ConnectionLimits(4 * MANY))
    with clients(server.port, 3, b"") as silent:
        async with server:
            await until_held(server, 3)
        assert [answer_to(client) for client in silent] == [b""] * 3
        assert server.num_connections == 0


async def test_a_connection_is_served_in_the_account_that_its_first_bytes_name() -> None:
    accounts = {name: Account[asyncio.Handle](name) for name in ("listener", "known", "unknown")}
    charged: dict[str, list[str]] = {}

    def account_name() -> str:
        charge = CHARGE.get()
        return "none" if charge is None else charge.account.name

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        charged.setdefault(request.path, []).append(account_name())
        return web.Response()

    def classify(first_bytes: bytes, address: str) -> Account[asyncio.Handle]:
        assert address == "127.0.0.1"
        return accounts["known" if first_bytes.startswith(b"GET /known") else "unknown"]

    listener_accounts = ListenerAccounts(accounts["listener"], classify, accounts["unknown"])
    server = BoundedServer(handle, ConnectionLimits(10), LOG, accounts=listener_accounts)
    listening = bind("127.0.0.1", 0)
    listening.listen(10)
    port: int = listening.getsockname()[1]
    server.begin(listening)
    for path in ("/known", "/other"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
    await server.end(0.1)
    assert charged == {"/known": ["known"], "/other": ["unknown"]}
    assert account_name() == "none", "and nothing else is"
