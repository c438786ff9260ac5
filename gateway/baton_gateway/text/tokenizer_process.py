"""A large tokenizer in processes apart: loading one holds the interpreter, in whatever thread, for up to seconds.

One process for small prompts and one for large ones, so that a small one never waits behind a large one. The second
starts with the first large prompt. A process that ends is started and loaded again for the next question.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref

import msgspec

from baton_gateway.errors import (
    BundleError,
    ProcessNotStartedError,
    RefusedError,
    TurnTimeoutError,
    tokenizer_failed,
    tokenizer_unavailable,
)
from baton_gateway.helper_processes.fatal_inputs import FatalInputs
from baton_gateway.helper_processes.helper_process import START_S, NoAnswer, ProcessApart
from baton_gateway.helper_processes.process_lane import HealthProblem, ProcessLane
from baton_gateway.text.bundle import Bundle
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.text")
LARGE_BUNDLE_BYTES = 1 << 20
"""Some 70 ms of loading, and 15,000 tokens."""
LOAD_S = 60.0
ENCODE_S = 30.0
"""For the longest prompt that fits, on a machine that is busy."""
_MODULE = "baton_gateway.text.tokenizer_main"
_TRIES = 2
"""A process may have been ended by somebody else."""


class LoadBundle(msgspec.Struct, frozen=True, tag=True):
    data: bytes
    hash: str


class EncodeText(msgspec.Struct, frozen=True, tag=True):
    text: str
    is_rendered: bool
    max_tokens: int
    cuts: tuple[int, ...]


class DecodeIds(msgspec.Struct, frozen=True, tag=True):
    ids: list[int]


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """What a text model needs of its tokenizer besides tokenising."""

    bundle: Bundle
    """Without the tokenizer's own text."""
    eos_ids: tuple[int, ...]
    tokens: dict[int, str]
    special_tokens: dict[int, str]
    decoder: bytes
    """Settings as JSON."""
    longest_token_bytes: int | None
    marks: dict[str, tuple[int, ...]]


class Encoded(msgspec.Struct, frozen=True, tag=True):
    packed: bytes | None
    """None: it has far more tokens than fit."""


class Decoded(msgspec.Struct, frozen=True, tag=True):
    text: str


class TokenizerFailed(msgspec.Struct, frozen=True, tag=True):
    """The library gave up on this text, or these ids."""


class BundleRefused(msgspec.Struct, frozen=True, tag=True):
    message: str


Question = LoadBundle | EncodeText | DecodeIds
Answer = Loaded | Encoded | Decoded | BundleRefused | TokenizerFailed
HELLO = DecodeIds([])
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class _Lane(ProcessLane):
    """One process, one question at a time."""

    def __init__(self, load: bytes, name: str) -> None:
        super().__init__(ProcessApart(_MODULE, _encode(HELLO)), name, 2 * (START_S + LOAD_S + ENCODE_S) + 120.0)
        self._load = load
        self._has_loaded: int | None = None
        """The process that has."""
        self._bad: FatalInputs[bool] = FatalInputs()
        self._complaints = Complaints(_log)

    async def load(self) -> Answer | None:
        """None: it does not start, or takes too long. Raises TurnTimeoutError."""
        return await self.run("", self._loaded)

    async def ask(self, question: Question, who: str) -> Answer | None:
        """None: no answer came. Goes on to its end when its client is gone: ending the process would cost the next one
        more. Raises TurnTimeoutError.
        """
        encoded = _encode(question)
        if self._bad.verdict(encoded):
            return TokenizerFailed()
        return await self.run(who, lambda: self._asked(encoded))

    async def _asked(self, encoded: bytes) -> Answer | None:
        for _ in range(_TRIES):
            is_ready = self.process.is_running and self.process.pid == self._has_loaded
            if not is_ready and not isinstance(await self._loaded(), Loaded):
                continue
            body = await self._answered(encoded, ENCODE_S)
            if isinstance(body, bytes):
                return _decoder.decode(body)
            if body is NoAnswer.TOO_SLOW:
                self._bad.keep(True, encoded)
                return TokenizerFailed()
        return None

    async def _loaded(self) -> Answer | None:
        body = await self._answered(self._load, LOAD_S)
        if not isinstance(body, bytes):
            return None
        self._has_loaded = self.process.pid
        return _decoder.decode(body)

    async def _answered(self, question: bytes, within_s: float) -> bytes | NoAnswer | None:
        """None: it does not start."""
        try:
            body = await self.process.ask(question, within_s)
        except ProcessNotStartedError as error:
            self._failed(f"it does not start: {error}")
            return None
        if isinstance(body, bytes):
            self.health.served()
        elif body is not NoAnswer.TOO_SLOW:
            self._failed(body.value)
        return body

    def _failed(self, reason: str) -> None:
        self.health.failed(reason, time.monotonic())
        self._complaints.say("a process for a tokenizer does not answer", reason)


class TokenizerApart:
    """The tokenizer of one bundle. Its owner closes it."""

    def __init__(self, data: bytes, bundle_hash: str) -> None:
        load = _encode(LoadBundle(data, bundle_hash))
        self._small = _Lane(load, "the process for a tokenizer")
        self._large = _Lane(load, "the process for a tokenizer of long prompts")
        processes = self._small.process, self._large.process
        weakref.finalize(self, _end, asyncio.get_running_loop(), processes).atexit = False

    async def load(self) -> Loaded:
        """Raises BundleError."""
        try:
            answer = await self._small.load()
        except TurnTimeoutError:
            answer = None
        if isinstance(answer, BundleRefused):
            raise BundleError(answer.message)
        if not isinstance(answer, Loaded):
            raise BundleError("tokenizer bundle: the process for its tokenizer does not answer")
        return answer

    async def encode(self, question: EncodeText, is_large: bool, field: str, who: str) -> bytes | None:
        """Packed ids; None when they are far more than fit. `who` takes turns with others. Raises RefusedError."""
        answer = await self._asked(self._large if is_large else self._small, question, field, who)
        assert isinstance(answer, Encoded)
        return answer.packed

    async def decode(self, ids: list[int], field: str, who: str) -> str:
        """Raises RefusedError."""
        answer = await self._asked(self._large, DecodeIds(ids), field, who)
        assert isinstance(answer, Decoded)
        return answer.text

    async def look(self) -> None:
        """Ask processes that fail whether they serve again."""
        await asyncio.gather(self._small.look(), self._large.look())

    def ailments(self, now: float) -> list[HealthProblem]:
        return [*self._small.ailments(now), *self._large.ailments(now)]

    async def release(self) -> None:
        """End the processes once they have answered. Whoever still asks starts one again."""
        try:
            await asyncio.gather(*(lane.run("", lane.process.kill) for lane in (self._small, self._large)))
        except TurnTimeoutError:
            await self.close()

    async def close(self) -> None:
        """End the processes, and what they are at. Waits for nobody's turn."""
        await asyncio.gather(self._small.stop(), self._large.stop())

    async def _asked(self, lane: _Lane, question: Question, field: str, who: str) -> Answer:
        try:
            answer = await lane.ask(question, who)
        except TurnTimeoutError:
            answer = None
        if answer is None:
            raise RefusedError(tokenizer_unavailable())
        if isinstance(answer, TokenizerFailed):
            raise RefusedError(tokenizer_failed(field))
        return answer


def _end(loop: asyncio.AbstractEventLoop, processes: tuple[ProcessApart, ...]) -> None:
    """Of a tokenizer that nobody has any more."""
    if not loop.is_closed():
        for process in processes:
            loop.call_soon_threadsafe(process.end)
