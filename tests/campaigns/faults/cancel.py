"""Clients that hang up: at many points of a request's life, again and again, and thousands in one tick.

`points` closes 200 connections at each point and then wants every block back within 2 s; `storm` opens 2,000 streams
and closes all streams at once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.results import Cell

from baton_testing.engine import tiny_llama
from campaigns.faults.fleet import POLL_S, UpFleet
from campaigns.faults.load import REQUEST_S, Ask, question_of, send_and_judge

BASELINE_S = 2.0
BASELINE_WAIT_S = 30.0
AT_ONCE = 20
QUESTION = "Count to one hundred."


@dataclass(slots=True)
class Client:
    """One connection that is given up at a point."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: Mapping[str, Any]

    def head(self) -> bytes:
        size = len(self.payload())
        lines = "POST /v1/chat/completions HTTP/1.0", "Host: x", "Content-Type: application/json"
        return "\r\n".join((*lines, f"Content-Length: {size}", "", "")).encode()

    def payload(self) -> bytes:
        return json.dumps(self.body).encode()

    def ask(self) -> None:
        self.writer.write(self.head() + self.payload())

    async def events(self, count: int) -> None:
        """Read `count` events of the stream, fewer when it ends."""
        while count and (line := await self.reader.readline()):
            count -= line.startswith(b"data: ")


Point = Callable[[Client], Awaitable[None]]


def _after(delay_s: float) -> Point:
    async def point(client: Client) -> None:
        client.ask()
        await asyncio.sleep(delay_s)

    return point


def _events(count: int) -> Point:
    async def point(client: Client) -> None:
        client.ask()
        await client.events(count)

    return point


async def _send_nothing(client: Client) -> None:
    """Nothing was sent."""


async def _in_head(client: Client) -> None:
    client.writer.write(client.head()[:40])
    await asyncio.sleep(0.002)


async def _before_body(client: Client) -> None:
    client.writer.write(client.head())
    await asyncio.sleep(0.002)


async def _in_body(client: Client) -> None:
    client.writer.write(client.head() + client.payload()[:30])
    await asyncio.sleep(0.002)


async def _status_line(client: Client) -> None:
    client.ask()
    await client.reader.readline()


async def _half_closed(client: Client) -> None:
    client.ask()
    client.writer.write_eof()
    await client.events(3)


async def _finish(client: Client) -> None:
    client.ask()
    while (line := await client.reader.readline()) and b'"finish_reason":"stop"' not in line.replace(b" ", b""):
        pass


@dataclass(frozen=True, slots=True)
class Spot:
    name: str
    point: Point
    fields: dict[str, Any] = field(default_factory=dict)


DELAYS_MS = (0, 1, 2, 4, 8, 12, 18, 25, 40)
COUNTS = (1, 2, 3, 5, 9, 17, 40)
SPOTS = (
    Spot("connected, nothing sent", _send_nothing),
    Spot("inside the head", _in_head),
    Spot("before the body", _before_body),
    Spot("inside the body", _in_body),
    *(Spot(f"{ms} ms after asking", _after(ms / 1e3)) for ms in DELAYS_MS),
    Spot("at the response's head", _status_line),
    *(Spot(f"after {count} events", _events(count)) for count in COUNTS),
    Spot("half closed, then after 3 events", _half_closed),
    Spot("at the finish, before [DONE]", _finish, {"max_tokens": 24}),
    Spot("not streamed, 10 ms after asking", _after(0.01), {"stream": False}),
    Spot("not streamed, 60 ms after asking", _after(0.06), {"stream": False}),
    Spot("n = 4, after 1 event", _events(1), {"n": 4}),
    Spot("n = 4, after 30 events", _events(30), {"n": 4}),
    Spot("one token only, 8 ms after asking", _after(0.008), {"max_tokens": 1}),
)


async def points(fleet: UpFleet, per_spot: int, journal: Path, until_s: float) -> None:
    """`per_spot` cancels at every spot that the journal does not have yet; no spot begins after `until_s`
    (monotonic)."""
    done = {row["point"] for row in load_journal(journal)}
    before = {member.pid for member in await fleet.members()}
    for spot in SPOTS:
        if spot.name in done or time.monotonic() > until_s:
            continue
        began = time.monotonic()
        for _ in range(0, per_spot, AT_ONCE):
            await asyncio.gather(*(_cancel_one(fleet, spot) for _ in range(min(AT_ONCE, per_spot))))
        ended = time.monotonic()
        free_s = await _until_free(fleet, ended)
        is_alive = await _answers(fleet) and before == {member.pid for member in await fleet.members()}
        row: dict[str, Cell] = {"point": spot.name, "cancels": per_spot, "blocks free after s": free_s}
        _append(journal, {**row, "alive": "yes" if is_alive else "NO", "took s": round(ended - began, 1)})


def load_journal(path: Path) -> list[dict[str, Cell]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _append(path: Path, row: dict[str, Cell]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(row) + "\n")
    print(row, flush=True)


def is_good(row: dict[str, Cell]) -> bool:
    """Alive, and every block back in time."""
    free_s = row["blocks free after s"]
    return row["alive"] == "yes" and isinstance(free_s, float) and free_s <= BASELINE_S


async def storm(fleet: UpFleet, clients: int, journal: Path) -> None:
    """`clients` streams that run or wait, closed in one tick."""
    before = {member.pid for member in await fleet.members()}
    spot = Spot("storm", _send_nothing)
    connected = [await _connect(fleet, spot) for _ in range(clients)]
    for client in connected:
        client.ask()
    begun = [asyncio.create_task(client.events(2)) for client in connected[:32]]
    await asyncio.wait(begun, timeout=REQUEST_S, return_when=asyncio.FIRST_COMPLETED)
    for task in begun:
        task.cancel()
    for client in connected:
        client.writer.transport.abort()
    ended = time.monotonic()
    free_s = await _until_free(fleet, ended)
    is_alive = await _answers(fleet) and before == {member.pid for member in await fleet.members()}
    row: dict[str, Cell] = {"point": "all in one tick", "cancels": clients, "blocks free after s": free_s}
    row["alive"] = "yes" if is_alive else "NO"
    _append(journal, row)


async def _connect(fleet: UpFleet, spot: Spot) -> Client:
    reader, writer = await asyncio.open_connection(fleet.host, fleet.port, limit=1 << 20)
    return Client(reader, writer, question_of(QUESTION, **spot.fields).body)


async def _cancel_one(fleet: UpFleet, spot: Spot) -> None:
    client = await _connect(fleet, spot)
    try:
        async with asyncio.timeout(REQUEST_S):
            await spot.point(client)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        client.writer.transport.abort()


async def _until_free(fleet: UpFleet, since: float) -> float | None:
    while time.monotonic() - since < BASELINE_WAIT_S:
        books = await fleet.books()
        if books and all(worker_books.at_baseline for worker_books in books):
            return round(time.monotonic() - since, 3)
        await asyncio.sleep(POLL_S)
    return None


async def _answers(fleet: UpFleet) -> bool:
    """The engine still computes: a whole, exact answer."""
    question, text = tiny_llama.GREETING
    outcome = await send_and_judge(
        fleet.host, fleet.port, Ask("greeting", question_of(question, max_tokens=64), (text,))
    )
    return outcome.verdict == "exact"
