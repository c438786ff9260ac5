"""An innocent client: asks short things at a steady pace and knows the answers, and looks at the probe of liveness."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from baton_testing.gateway.raw_client import LOOPBACK, encoded, error_code, exchange, got, posted, status_of

LOST_S = 20.0
"""An answer that takes longer counts as lost."""
PROBE_S = 0.05
LATE_S = 0.03
"""Lag of this process itself: a probe during it says nothing about the gateway."""
NOT_LIVE_S = 99.0


@dataclass(frozen=True, slots=True)
class Short:
    """A short request of one kind. Whole answers have one token, so that they come with the first one."""

    kind: str
    path: str
    body: bytes
    stream: bool


@dataclass(slots=True)
class Seen:
    """By one client. Times in seconds."""

    ttft_s: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """By kind: no answer, or one without an end."""
    wrong: list[str] = field(default_factory=list)
    live_s: list[float] = field(default_factory=list)

    def problems(self) -> list[str]:
        """Results that no client may ever see, whatever others do."""
        problems = [f"refused: {dict(self.refused)}"] if self.refused else []
        problems += [f"lost: {dict(self.lost)}"] if self.lost else []
        return [*problems, *self.wrong[:3]]


def shorts(model: str, question: str) -> tuple[Short, ...]:
    """Chats and completions, streamed and whole."""
    requests = []
    for stream, tokens in ((True, 8), (False, 1)):
        common = {"model": model, "max_tokens": tokens, "temperature": 0, "stream": stream}
        chat = encoded(messages=[{"role": "user", "content": question}], **common)
        way = "streamed" if stream else "whole"
        requests.append(Short(f"chat, {way}", "/v1/chat/completions", chat, stream))
        requests.append(Short(f"completion, {way}", "/v1/completions", encoded(prompt=question, **common), stream))
    return tuple(requests)


class SteadyClient:
    """A context: it asks until it is left. `seen` may be replaced at any time, for another window."""

    def __init__(self, port: int, key: str | None, asked: tuple[Short, ...], rate: float) -> None:
        """`rate`: requests a second, however long the answers take."""
        self._port, self._key, self._asked, self._rate = port, key, asked, rate
        self._expected: Mapping[str, str] = {}
        self._open: set[asyncio.Task[None]] = set()
        self._running: list[asyncio.Task[None]] = []
        self._late_s = 0.0
        self.seen = Seen()

    async def __aenter__(self) -> SteadyClient:
        """Learns the answers, of which the second of two must be the first. Raises RuntimeError."""
        answers = [{short.kind: (await self._carried(short))[1] for short in self._asked} for _ in range(2)]
        if answers[0] != answers[1]:
            raise RuntimeError(f"two answers to one question: {answers}")
        self._expected = answers[0]
        self._running = [asyncio.create_task(task) for task in (self._ask(), self._probe(), self._watch_itself())]
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._running, *self._open]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Ask no more, and wait for what is open: it is answered or lost in time."""
        self._running[0].cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for number, short in enumerate(itertools.cycle(self._asked)):
            await asyncio.sleep(max(0.0, began + number / self._rate - loop.time()))
            task = asyncio.create_task(self._judge(short))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _judge(self, short: Short) -> None:
        seen = self.seen
        try:
            async with asyncio.timeout(LOST_S):
                ttft_s, text = await self._carried(short)
        except (TimeoutError, OSError, EOFError):
            seen.lost[short.kind] += 1
            seen.ttft_s.append(LOST_S)
            return
        except ValueError as error:
            seen.refused[str(error)] += 1
            return
        seen.ttft_s.append(ttft_s)
        if text != self._expected[short.kind]:
            seen.wrong.append(f"{short.kind}: {text!r} instead of {self._expected[short.kind]!r}")

    async def _carried(self, short: Short) -> tuple[float, str]:
        """TTFT and text. Raises ValueError for a refusal, and EOFError where the answer has no end."""
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection(LOOPBACK, self._port, limit=1 << 20)
        try:
            writer.write(posted(short.path, short.body, self._key))
            status = status_of(await reader.readuntil(b"\r\n\r\n"))
            if status != 200:
                raise ValueError(f"{status} {error_code(await reader.read())}")
            if not short.stream:
                answer = await reader.read()
                return time.perf_counter() - began, _text(json.loads(answer))
            return await _streamed(reader, began)
        finally:
            writer.close()

    async def _probe(self) -> None:
        while True:
            seen, self._late_s = self.seen, 0.0
            began = time.perf_counter()
            status, _ = await exchange(self._port, got("/health/live"), LOST_S)
            if self._late_s < LATE_S:
                seen.live_s.append(time.perf_counter() - began if status == 200 else NOT_LIVE_S)
            await asyncio.sleep(PROBE_S)

    async def _watch_itself(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + 0.005
            await asyncio.sleep(0.005)
            self._late_s = max(self._late_s, loop.time() - due_s)


async def _streamed(reader: asyncio.StreamReader, began: float) -> tuple[float, str]:
    ttft_s = 0.0
    texts: list[str] = []
    async for line in reader:
        data = line.partition(b"data: ")[2].strip()
        if data == b"[DONE]":
            return ttft_s, "".join(texts)
        if data:
            chunk = json.loads(data)
            if "error" in chunk:
                raise ValueError(f"error event {chunk['error'].get('code')}")
            texts.append(_text(chunk))
            if texts[-1] and not ttft_s:
                ttft_s = time.perf_counter() - began
    raise EOFError("a stream without [DONE]")


def _text(answer: Mapping[str, list[dict[str, dict[str, str]]]]) -> str:
    """The text of all choices."""
    parts = [choice.get("delta") or choice.get("message") or choice for choice in answer["choices"]]
    return "".join(str(part.get("content") or part.get("text") or "") for part in parts)
