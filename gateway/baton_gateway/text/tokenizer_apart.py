"""A large tokenizer in processes apart: loading one holds the interpreter, in whatever thread, for up to seconds.

One process for small prompts and one for large ones, so that a small one never waits behind a large one. The second
starts with the first large prompt. A process that ends is started and loaded again for the next question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

from baton_gateway.errors import BundleError, RefusedError, tokenizer_unavailable
from baton_gateway.process_apart import ProcessApart
from baton_gateway.text.bundle import Bundle

_log = logging.getLogger("baton.gateway.text")
T = TypeVar("T")

LARGE_BUNDLE_BYTES = 1 << 20
"""Some 70 ms of loading, and 15,000 tokens."""
LOAD_S = 60.0
ENCODE_S = 30.0
"""For the longest prompt that fits, on a machine that is busy."""
_MODULE = "baton_gateway.text.tokenizer_process"
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


class BundleRefused(msgspec.Struct, frozen=True, tag=True):
    message: str


Question = LoadBundle | EncodeText | DecodeIds
Answer = Loaded | Encoded | Decoded | BundleRefused
HELLO = DecodeIds([])
_encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)


class _Lane:
    """One process, one question at a time."""

    def __init__(self, load: bytes) -> None:
        self._load = load
        self._process = ProcessApart(_MODULE, _encode(HELLO))
        self._asking = asyncio.Lock()
        self._has_loaded: int | None = None
        """The process that has."""

    async def load(self) -> Answer | None:
        """None: it does not start, or takes too long."""
        async with self._asking:
            return await self._loaded()

    async def ask(self, question: Question, is_wanted: asyncio.Event) -> Answer | None:
        """None: no answer came, or nobody wants it any more."""
        async with self._asking:
            for _ in range(_TRIES if is_wanted.is_set() else 0):
                is_ready = self._process.is_running and self._process.pid == self._has_loaded
                if not is_ready and not isinstance(await self._loaded(), Loaded):
                    continue
                body = await self._process.ask(_encode(question), ENCODE_S)
                if body is not None:
                    return _decoder.decode(body)
        return None

    async def close(self) -> None:
        async with self._asking:
            await self._process.kill()

    async def _loaded(self) -> Answer | None:
        try:
            body = await self._process.ask(self._load, LOAD_S)
        except (TimeoutError, EOFError, OSError):
            _log.exception("a process for a tokenizer does not start")
            return None
        if body is None:
            return None
        self._has_loaded = self._process.pid
        return _decoder.decode(body)


class TokenizerApart:
    """The tokenizer of one bundle. Its owner closes it."""

    def __init__(self, data: bytes, bundle_hash: str) -> None:
        load = _encode(LoadBundle(data, bundle_hash))
        self._small, self._large = _Lane(load), _Lane(load)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def load(self) -> Loaded:
        """Raises BundleError."""
        answer = await self._small.load()
        if isinstance(answer, BundleRefused):
            raise BundleError(answer.message)
        if not isinstance(answer, Loaded):
            raise BundleError("tokenizer bundle: the process for its tokenizer does not answer")
        return answer

    async def encode(
        self, text: str, is_rendered: bool, max_tokens: int, is_large: bool, cuts: tuple[int, ...]
    ) -> bytes | None:
        """Packed ids; None when they are far more than `max_tokens`. Raises RefusedError."""
        question = EncodeText(text, is_rendered, max_tokens, cuts)
        answer = await self._asked(self._large if is_large else self._small, question)
        assert isinstance(answer, Encoded)
        return answer.packed

    async def decode(self, ids: list[int]) -> str:
        """Raises RefusedError."""
        answer = await self._asked(self._large, DecodeIds(ids))
        assert isinstance(answer, Decoded)
        return answer.text

    async def close(self) -> None:
        """End the processes. Whoever still asks starts one again."""
        await asyncio.gather(self._small.close(), self._large.close())

    async def _asked(self, lane: _Lane, question: Question) -> Answer:
        """An answer is waited for also after the client is gone: ending the process would cost the next one more."""
        wanted = asyncio.Event()
        wanted.set()
        try:
            answer = await self._to_its_end(lane.ask(question, wanted))
        finally:
            wanted.clear()
        if answer is None:
            raise RefusedError(tokenizer_unavailable())
        return answer

    async def _to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its client may be gone
