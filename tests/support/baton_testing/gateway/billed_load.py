"""A load whose clients count what they receive, and the comparison of their counts with the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from baton_testing.gateway.raw_client import LOOPBACK, head, status_of
from baton_testing.gateway.three_tenants import BAD, GOOD
from baton_wire.ledger_line import LedgerLine, LineEvent, decode_line

TENANTS = {GOOD: "good", BAD: "bad"}
REQUEST_S = 60.0
RETRY_S = 0.5
STAYS_FOR_HEAD = 4
"""Clients of whole answers that would stay for fewer events hang up after the head."""


@dataclass(slots=True)
class ClientCount:
    """What one client knows of its request."""

    id: str
    tenant: str
    streams: bool
    n: int
    priority: str
    is_accepted: bool = False
    """True once the head of an answer with status 200 was read."""
    is_whole: bool = False
    hung_up: bool = False
    seen_tokens: int = 0
    """Output tokens of its answers, as far as they were received."""
    input_tokens: int | None = None
    largest_write: int = 0
    """The most tokens that came with one chunk."""


@dataclass
class BilledLoad:
    """Clients that ask until `stop`: streams and whole answers, one and several choices, some that hang up."""

    port: int
    model: str
    seed: int
    counts: list[ClientCount] = field(default_factory=list)
    _is_over: bool = False
    _number: int = 0

    def stop(self) -> None:
        self._is_over = True

    async def lane(self, number: int) -> None:
        """One client, which asks one thing after the other."""
        dice = random.Random(f"{self.seed} {number}")
        while not self._is_over:
            self._number += 1
            key = dice.choice((GOOD, BAD))
            streams, n = dice.random() < 0.7, dice.choice((1, 1, 1, 2, 3))
            priority = dice.choice(("Standard", "Batch"))
            count = ClientCount(f"bill-{self.seed}-{self._number}", TENANTS[key], streams, n, priority)
            self.counts.append(count)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(REQUEST_S):
                    await self._ask(count, key, dice)
            if not count.is_accepted:
                await asyncio.sleep(RETRY_S)

    async def _ask(self, count: ClientCount, key: str, dice: random.Random) -> None:
        fields: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": "bill me " * dice.randint(1, 30)}],
            "max_tokens": dice.randint(2, 60),
            "n": count.n,
            "stream": count.streams,
            "priority": count.priority.lower(),
        }
        if count.streams:
            fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        stays_for = dice.randint(1, 20) if dice.random() < 0.15 else None
        body = json.dumps(fields).encode()
        sent = head("/v1/chat/completions", len(body), key).removesuffix(b"\r\n")
        reader, writer = await asyncio.open_connection(LOOPBACK, self.port)
        try:
            writer.write(sent + f"X-Request-Id: {count.id}\r\n\r\n".encode() + body)
            if status_of(await reader.readline()) != 200:
                return
            count.is_accepted = True
            await self._read(reader, count, stays_for)
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, count: ClientCount, stays_for: int | None) -> None:
        """Read lines to the end: also those that came before the connection broke, which HTTP clients drop."""
        events = 0
        while (row := await reader.readline()).endswith(b"\n"):
            if row.startswith(b"data: [DONE]"):
                count.is_whole = True
                return
            if row.startswith(b"data: "):
                event = json.loads(row[6:])
                if event.get("usage") is not None:
                    _take_usage(count, event["usage"])
                events += 1
            if not count.streams and stays_for is not None and stays_for < STAYS_FOR_HEAD:
                count.hung_up = True
                return
            if events == stays_for:
                count.hung_up = True
                return
        if row:  # the body of a whole answer has no line feed
            with contextlib.suppress(json.JSONDecodeError):
                _take_usage(count, json.loads(row)["usage"])
                count.is_whole = True


def _take_usage(count: ClientCount, usage: dict[str, int]) -> None:
    more = usage["completion_tokens"] - count.seen_tokens
    count.largest_write = max(count.largest_write, more)
    count.seen_tokens, count.input_tokens = usage["completion_tokens"], usage["prompt_tokens"]


@contextlib.asynccontextmanager
async def running(load: BilledLoad, lanes: int) -> Any:
    """Run `lanes` clients while the context lasts, and let them end what they have begun."""
    tasks = [asyncio.create_task(load.lane(number)) for number in range(lanes)]
    try:
        yield
        load.stop()
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Verdict:
    """The comparison of clients' counts with the ledger."""

    problems: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    excess: Counter[float] = field(default_factory=Counter)
    """Tokens a sequence that were recorded and not seen, of streams that a kill or a failure cut."""


def closed_lines(folder: Path) -> tuple[dict[str, list[LedgerLine]], int]:
    """The closing lines by their client's id, and how many lines there are of an id that has one already."""
    lines: dict[str, list[LedgerLine]] = {}
    ids, twice = set[str](), 0
    for path in folder.glob("*.jsonl"):
        for content in path.read_bytes().splitlines():
            try:
                line = decode_line(content)
            except ValueError:
                continue
            if line.event is LineEvent.CLOSED:
                twice += line.id in ids
                ids.add(line.id)
                lines.setdefault(line.request, []).append(line)
    return lines, twice


def compare(counts: Iterable[ClientCount], folder: Path, frame_tokens: int) -> Verdict:
    """Judge a ledger. `frame_tokens`: tokens of one sequence in one write to its client."""
    verdict = Verdict()
    lines, twice = closed_lines(folder)
    if twice:
        verdict.problems.append(f"{twice} requests have more than one closing line")
    for count in counts:
        found = lines.get(count.id, [])
        if len(found) > 1:
            verdict.problems.append(f"{count.id}: {len(found)} requests in the ledger")
        elif not found and count.is_accepted:
            verdict.problems.append(f"{count.id}: a client saw it accepted, and it is not in the ledger")
        elif found:
            _compare_one(count, found[0], frame_tokens, verdict)
        else:
            verdict.kinds["not accepted, not recorded"] += 1
    return verdict


def _compare_one(count: ClientCount, line: LedgerLine, frame_tokens: int, verdict: Verdict) -> None:
    output, seen, status = line.output_tokens, count.seen_tokens, line.status
    kind = "stream" if count.streams else "whole answer"
    end = "complete" if count.is_whole else "hung up" if count.hung_up else "cut"
    verdict.kinds[f"{kind}, {end} at the client: {status}"] += 1
    text = f"{count.id} ({kind}, n {count.n}, {end}): {seen} seen, {output} recorded, {status}"
    if output is None or (line.tenant, line.priority) != (count.tenant, count.priority):
        verdict.problems.append(f"{text}: {line.tenant}, {line.priority}")
    elif count.input_tokens not in (None, line.input_tokens):
        verdict.problems.append(f"{text}: {count.input_tokens} input tokens seen, {line.input_tokens} recorded")
    elif count.is_whole:
        if output != seen:
            verdict.problems.append(text)
    elif output < seen:
        verdict.problems.append(f"{text}: too few")
    elif count.streams and not count.hung_up:
        verdict.excess[(output - seen) / count.n] += 1
        if output > seen + count.n * frame_tokens:
            verdict.problems.append(f"{text}: too many")
