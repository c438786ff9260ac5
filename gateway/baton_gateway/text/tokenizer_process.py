"""A large tokenizer in helper processes: in any thread, loading one would hold the interpreter for up to seconds.

One process tokenises small prompts and another one large prompts, so a small prompt never waits for a large one. The
second starts with the first large prompt. A process that ended is started and loaded again for the next question.
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
from baton_gateway.helper_processes.helper_process import START_S, HelperProcess, NoAnswer
from baton_gateway.helper_processes.process_lane import HealthProblem, ProcessLane
from baton_gateway.text.bundle import Bundle
from baton_wire.listening.complaints import Complaints

_log = logging.getLogger("baton.gateway.text")
LARGE_BUNDLE_BYTES = 1 << 20
"""A bundle of this size takes some 70 ms to load, and has 15,000 tokens."""
LOAD_S = 60.0
ENCODE_S = 30.0
"""Enough for the longest prompt that fits, on a busy machine."""
_MODULE = "baton_gateway.text.tokenizer_main"
_TRIES = 2
"""A process may have been killed from outside."""


class LoadTokenizer(msgspec.Struct, frozen=True, tag=True):
    data: bytes
    hash: str


class EncodeText(msgspec.Struct, frozen=True, tag=True):
    text: str
    is_rendered: bool
    max_tokens: int
    cuts: tuple[int, ...]


class DecodeIds(msgspec.Struct, frozen=True, tag=True):
    ids: list[int]


class LoadedTokenizer(msgspec.Struct, frozen=True, tag=True):
    """The properties of a tokenizer that a text model needs besides tokenising."""

    bundle: Bundle
    """The bundle without the tokenizer's JSON."""
    eos_ids: tuple[int, ...]
    tokens: dict[int, str]
    special_tokens: dict[int, str]
    decoder: bytes
    """The decoder's settings as JSON."""
    longest_token_bytes: int | None
    marks: dict[str, tuple[int, ...]]


class Encoded(msgspec.Struct, frozen=True, tag=True):
    packed: bytes | None
    """None: the text has far more tokens than fit."""


class Decoded(msgspec.Struct, frozen=True, tag=True):
    text: str


class TokenizerFailed(msgspec.Struct, frozen=True, tag=True):
    """The library failed with this text, or these ids."""


class BundleRefused(msgspec.Struct, frozen=True, tag=True):
    message: str


Question = LoadTokenizer | EncodeText | DecodeIds
Answer = LoadedTokenizer | Encoded | Decoded | BundleRefused | TokenizerFailed
PROBE = DecodeIds([])
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class _Lane(ProcessLane):
    """One process, one question at a time."""

    def __init__(self, load: bytes, name: str) -> None:
        super().__init__(HelperProcess(_MODULE, _encode(PROBE)), name, 2 * (START_S + LOAD_S + ENCODE_S) + 120.0)
        self._load = load
        self._loaded_pid: int | None = None
        """The process that has loaded the tokenizer."""
        self._fatal: FatalInputs[bool] = FatalInputs()
        self._complaints = Complaints(_log)

    async def load(self) -> Answer | None:
        """Load the tokenizer; None: the process does not start, or is too slow. Raises TurnTimeoutError."""
        return await self.run("", self._load_now)

    async def ask(self, question: Question, client: str) -> Answer | None:
        """Return the answer; None: none came. Raises TurnTimeoutError.

        A question goes on after its client has gone: restarting the process would cost the next client more.
        """
        encoded = _encode(question)
        if self._fatal.get(encoded):
            return TokenizerFailed()
        return await self.run(client, lambda: self._ask(encoded))

    async def _ask(self, encoded: bytes) -> Answer | None:
        for _ in range(_TRIES):
            is_ready = self.process.is_running and self.process.pid == self._loaded_pid
            if not is_ready and not isinstance(await self._load_now(), LoadedTokenizer):
                continue
            body = await self._exchange(encoded, ENCODE_S)
            if isinstance(body, bytes):
                return _decoder.decode(body)
            if body is NoAnswer.TOO_SLOW:
                self._fatal.add(True, encoded)
                return TokenizerFailed()
        return None

    async def _load_now(self) -> Answer | None:
        body = await self._exchange(self._load, LOAD_S)
        if not isinstance(body, bytes):
            return None
        self._loaded_pid = self.process.pid
        return _decoder.decode(body)

    async def _exchange(self, question: bytes, within_s: float) -> bytes | NoAnswer | None:
        """Ask the process and record its health; None: it does not start."""
        try:
            body = await self.process.ask(question, within_s)
        except ProcessNotStartedError as error:
            self._record_failure(f"it does not start: {error}")
            return None
        if isinstance(body, bytes):
            self.health.record_success()
        elif body is not NoAnswer.TOO_SLOW:
            self._record_failure(body.value)
        return body

    def _record_failure(self, reason: str) -> None:
        self.health.record_failure(reason, time.monotonic())
        self._complaints.say("a tokenizer's process does not answer", reason)


class TokenizerProcess:
    """The tokenizer of one bundle, in two helper processes. The owner closes it."""

    def __init__(self, data: bytes, bundle_hash: str) -> None:
        load = _encode(LoadTokenizer(data, bundle_hash))
        self._small = _Lane(load, "the process for a tokenizer")
        self._large = _Lane(load, "the process for a tokenizer of long prompts")
        processes = self._small.process, self._large.process
        weakref.finalize(self, _kill, asyncio.get_running_loop(), processes).atexit = False

    async def load(self) -> LoadedTokenizer:
        """Load the tokenizer. Raises BundleError."""
        try:
            answer = await self._small.load()
        except TurnTimeoutError:
            answer = None
        if isinstance(answer, BundleRefused):
            raise BundleError(answer.message)
        if not isinstance(answer, LoadedTokenizer):
            raise BundleError("tokenizer bundle: the process for its tokenizer does not answer")
        return answer

    async def encode(self, question: EncodeText, is_large: bool, field: str, client: str) -> bytes | None:
        """Return packed ids; None: they are far more than fit. Clients take turns. Raises RefusedError."""
        answer = await self._ask(self._large if is_large else self._small, question, field, client)
        assert isinstance(answer, Encoded)
        return answer.packed

    async def decode(self, ids: list[int], field: str, client: str) -> str:
        """Return the text of ids, special tokens included. Clients take turns. Raises RefusedError."""
        answer = await self._ask(self._large, DecodeIds(ids), field, client)
        assert isinstance(answer, Decoded)
        return answer.text

    async def recheck(self) -> None:
        """Ask failing processes whether they serve again."""
        await asyncio.gather(self._small.recheck(), self._large.recheck())

    def health_problems(self, now: float) -> list[HealthProblem]:
        return [*self._small.health_problems(now), *self._large.health_problems(now)]

    async def release(self) -> None:
        """End the processes once they have answered. A later question starts one again."""
        try:
            await asyncio.gather(*(lane.run("", lane.process.kill) for lane in (self._small, self._large)))
        except TurnTimeoutError:
            await self.close()

    async def close(self) -> None:
        """Cancel current questions and kill the processes, without waiting for a lock."""
        await asyncio.gather(self._small.stop(), self._large.stop())

    async def _ask(self, lane: _Lane, question: Question, field: str, client: str) -> Answer:
        try:
            answer = await lane.ask(question, client)
        except TurnTimeoutError:
            answer = None
        if answer is None:
            raise RefusedError(tokenizer_unavailable())
        if isinstance(answer, TokenizerFailed):
            raise RefusedError(tokenizer_failed(field))
        return answer


def _kill(loop: asyncio.AbstractEventLoop, processes: tuple[HelperProcess, ...]) -> None:
    """Kill the processes of a tokenizer that was garbage-collected."""
    if not loop.is_closed():
        for process in processes:
            loop.call_soon_threadsafe(process.kill_nowait)
