"""Clients that are faster than the gateway delay no other tenant, and no probe, on a virtual clock.

All clients have one address, as behind a proxy. The server is the gateway's listener on its event loop with its
accounts; a request is modelled by the time that it takes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from aiohttp import web, web_protocol

from baton_gateway.http_api.loop_accounts import LoopAccounts
from baton_gateway.tenancy.tenants import Tenants
from baton_testing.wire.virtual_network import Script, VirtualNetwork, VirtualSocket, serve_virtual
from baton_wire.fair_loop.charging import charge_to
from baton_wire.listening.bounded_server import BoundedServer
from baton_wire.listening.connection_book import ConnectionLimits

LOG = logging.getLogger("test.connections")
ADDRESS = "10.0.0.1"
GOOD, BAD = "key-of-the-good-tenant", "key-of-the-bad-tenant"
ASKED = 40
"""Requests of the good tenant, and probes."""
BEFORE_S = 0.5
"""The attack is older than what is measured."""
EVERY_S = 0.02
ALONE_S = 0.0065
"""About what a request of the good tenant takes alone: 5 ms are its worker's."""
MOST_S = 1.5 * ALONE_S + 0.05
PROBE_S = 0.2
AGAIN_S = 1.0
"""The kernel tries a connection again after this long, if the server's queue had no place."""
LOST_S = 3.0
FOR_EVER_S = 60.0
BEGIN_S, HEAD_S, REFUSE_S, ANSWER_S = 150e-6, 100e-6, 300e-6, 1_000e-6
"""The times that the gateway takes for a connection, a head, a refusal and an answer."""
HEAVY, HEAVY_S = "X-Heavy", 0.01
"""A request that takes long in one callback: a large body."""


class ModelledServer(BoundedServer):
    """The gateway's listener, and requests that take their time."""

    def __init__(self, network: VirtualNetwork, accounts: LoopAccounts, tenants: Tenants) -> None:
        super().__init__(self._answer, ConnectionLimits(2_048, 1_024), LOG, accounts=accounts.listener)
        self._network, self._by_tenant, self._tenants = network, accounts, tenants

    def __call__(self) -> web_protocol.RequestHandler:
        self._network.work(BEGIN_S)
        return super().__call__()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._network.work(HEAD_S)
        if request.path == "/health/live":
            charge_to(self._by_tenant.probes)
            return web.Response(text="live")
        tenant = self._tenants.find(request.headers.get("Authorization", "").removeprefix("Bearer "))
        self._network.work(REFUSE_S)
        if tenant is None:
            return web.Response(status=401)
        charge_to(self._by_tenant.of(tenant, ADDRESS))
        if request.path != "/v1/completions":
            return web.Response(status=404)
        await request.read()
        if HEAVY in request.headers:
            self._network.work(HEAVY_S)
            return web.Response(status=400)
        self._network.work(ANSWER_S / 2)
        await asyncio.sleep(0.005)
        self._network.work(ANSWER_S / 2)
        return web.Response(text="answer")


def head(method: str, path: str, key: str | None = None, more: str = "Connection: close\r\n") -> bytes:
    bearer = "" if key is None else f"Authorization: Bearer {key}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: a\r\n{more}{bearer}\r\n".encode()


Attack = Callable[[VirtualSocket, Random], Script]
"""What a bad client does with one connection."""


def leaves(connection: VirtualSocket, draw: Random) -> Script:
    yield draw.uniform(0.001, 0.01)


def stays(connection: VirtualSocket, draw: Random) -> Script:
    yield FOR_EVER_S


def half_a_request(connection: VirtualSocket, draw: Random) -> Script:
    connection.client_sends(b"POST /v1/chat/comp")
    yield draw.uniform(0.001, 0.01)


def half_a_request_for_ever(connection: VirtualSocket, draw: Random) -> Script:
    connection.client_sends(b"POST /v1/chat/comp")
    yield FOR_EVER_S


def half_a_request_with_a_key(connection: VirtualSocket, draw: Random) -> Script:
    connection.client_sends(head("POST", "/v1/completions", BAD, "Content-Length: 1000\r\n"))
    yield draw.uniform(0.001, 0.01)


def asks(method: str, path: str, key: str | None = None, more: str = "Connection: close\r\n") -> Attack:
    def ask(connection: VirtualSocket, draw: Random) -> Script:
        connection.client_sends(head(method, path, key, more))
        yield connection

    return ask


def pipelines(connection: VirtualSocket, draw: Random) -> Script:
    while not connection.has_ended:
        connection.client_sends(head("GET", "/v1/completions", BAD, "") * 20)
        yield connection


def keeps_alive(connection: VirtualSocket, draw: Random) -> Script:
    while not connection.has_ended:
        connection.client_sends(head("GET", "/v1/completions", BAD, ""))
        yield connection


def garbage(connection: VirtualSocket, draw: Random) -> Script:
    connection.client_sends(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + draw.randbytes(500))
    yield connection


def slow_head(connection: VirtualSocket, draw: Random) -> Script:
    for byte in head("GET", "/v1/models"):
        connection.client_sends(bytes([byte]))
        yield 0.005
    yield connection


def leaves_after_a_token(connection: VirtualSocket, draw: Random) -> Script:
    connection.client_sends(head("GET", "/v1/completions", BAD))
    yield connection


ATTACKS: dict[str, tuple[int, Attack]] = {
    "connects and leaves": (16, leaves),
    "connects and stays": (16, stays),
    "half a request": (16, half_a_request),
    "half a request for ever": (16, half_a_request_for_ever),
    "half a request with a key": (16, half_a_request_with_a_key),
    "unknown keys": (64, asks("POST", "/v1/completions", "key-of-no-tenant-at-all")),
    "no keys": (64, asks("GET", "/v1/models")),
    "unknown paths": (64, asks("GET", "/v1/no/such", BAD)),
    "OPTIONS": (64, asks("OPTIONS", "/v1/completions")),
    "HEAD": (64, asks("HEAD", "/v1/models", BAD)),
    "giant headers": (64, asks("GET", "/v1/models", BAD, f"X-A: {'a' * 9_000}\r\n")),
    "garbage": (64, garbage),
    "slow heads": (256, slow_head),
    "pipelined requests": (16, pipelines),
    "kept connections": (256, keeps_alive),
    "reconnects after each token": (64, leaves_after_a_token),
    "heavy requests": (32, asks("GET", "/v1/completions", BAD, f"Connection: close\r\n{HEAVY}: yes\r\n")),
    "probes": (16, asks("GET", "/health/live")),
}
"""Bad clients, and how many of them there are."""
TOGETHER_SHARE = 0.25
"""The share of each kind when all attack at once. They still try to connect 20,000 times a second."""


def bad_client(network: VirtualNetwork, attack: Attack, draw: Random) -> Script:
    """Connects again as soon as it has left, at most a thousand times a second. One that stays opens another one."""
    while True:
        yield 0.001
        connection = network.connect(ADDRESS)
        if connection is None:
            yield 0.05
            continue
        script = attack(connection, draw)
        first = next(script, 0.0)
        if first == FOR_EVER_S:
            continue
        yield first
        yield from script
        connection.client_leaves()


def steady_client(network: VirtualNetwork, sent: bytes, expected: bytes, seen: list[float]) -> Script:
    """Asks once, and notes how long the answer took. A connection that ends without one is a lost request."""
    began_s = network.now
    while (connection := network.connect(ADDRESS)) is None:
        yield AGAIN_S
    connection.client_sends(sent)
    while not connection.has_ended:
        yield connection
    connection.client_leaves()
    if connection.answer.endswith(expected):
        seen.append(network.now - began_s)


def every(network: VirtualNetwork, sent: bytes, expected: bytes, seen: list[float]) -> Script:
    for _ in range(ASKED):
        network.play(steady_client(network, sent, expected, seen))
        yield EVERY_S


def attacked(
    tmp_path: Path, attacks: dict[str, tuple[int, Attack]], share: float = 1.0
) -> tuple[list[float], list[float]]:
    """Latencies of the good tenant's requests, and of probes, in order."""
    rows = [{"name": key, "key_sha256": [sha256(key.encode()).hexdigest()]} for key in (GOOD, BAD)]
    (tmp_path / "keys.json").write_text(json.dumps({"tenants": rows}))
    tenants, network = Tenants(tmp_path / "keys.json"), VirtualNetwork()
    answers: list[float] = []
    probes: list[float] = []

    async def main() -> None:
        server = ModelledServer(network, LoopAccounts(tenants), tenants)
        server.begin(network.listener)  # type: ignore[arg-type]
        for name, (lanes, attack) in attacks.items():
            for lane in range(max(1, int(lanes * share))):
                network.play(bad_client(network, attack, Random(f"{name} {lane}")))
        await asyncio.sleep(BEFORE_S)
        network.play(every(network, head("GET", "/v1/completions", GOOD), b"answer", answers))
        network.play(every(network, head("GET", "/health/live"), b"live", probes))
        until_s = network.now + LOST_S
        while network.now < until_s and len(answers) + len(probes) < 2 * ASKED:  # noqa: ASYNC110 - no loop sets an event
            await asyncio.sleep(EVERY_S)
        await server.end(0.0)
        await asyncio.sleep(1.0)  # connections that were cut off are closed

    serve_virtual(network, main)
    answers += [LOST_S] * (ASKED - len(answers))
    probes += [LOST_S] * (ASKED - len(probes))
    return sorted(answers), sorted(probes)


def test_alone_a_request_takes_what_the_model_says(tmp_path: Path) -> None:
    answers, probes = attacked(tmp_path, {})
    assert answers[-1] == pytest.approx(ALONE_S, rel=0.2)
    assert probes[-1] < 0.003


@pytest.mark.parametrize("name", [*ATTACKS, "all"])
def test_bad_clients_delay_no_other_tenant_and_no_probe(name: str, tmp_path: Path) -> None:
    if name == "all":
        answers, probes = attacked(tmp_path, ATTACKS, TOGETHER_SHARE)
    else:
        answers, probes = attacked(tmp_path, {name: ATTACKS[name]})
    assert answers[int(0.95 * len(answers))] <= MOST_S
    assert probes[-1] <= PROBE_S
