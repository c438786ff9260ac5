"""Tokenises prompts at a cost that the model's context bounds, however long the text is.

A text that cannot fit is refused by its size before it is tokenised. If the longest token is unknown or very long, the
text is first counted piece by piece until it is clear that it does not fit. The library lets other threads run while it
tokenises a batch, so large prompts are tokenised in one thread, one at a time. A tokenizer in a helper process does the
same there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

from baton_gateway.errors import (
    RefusedError,
    TokenizerError,
    TurnTimeoutError,
    prompt_too_long,
    tokenizer_failed,
    tokenizer_unavailable,
)
from baton_gateway.helper_processes.fair_lock import FairLock
from baton_gateway.helper_processes.process_lane import TURN_S, HealthProblem, ProcessHealth
from baton_gateway.text.returned_memory import return_memory
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.special_token_escape import split_at_cuts
from baton_gateway.text.tokenizer_process import EncodeText, TokenizerProcess
from baton_wire.messages.values import pack_ids

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

INLINE_CHARS = 4_096
"""Shorter prompts are tokenised on the event loop: some 1 ms."""
INLINE_IDS = 1_024
"""Fewer ids are decoded on the event loop."""
PIECE_CHARS = 16_384
USUAL_BYTES = 4
"""Bytes of ordinary text for each token. A text that would fit at this rate is not counted first."""
CERTAIN_FACTOR = 2
"""Pieces with this many times the tokens that fit leave no doubt: a cut adds a few tokens at most."""
LARGE_CHARS = 128 << 10
"""Tokenising more takes tens of MB, which the C library keeps unless it is asked to return them."""

MAX_HOLD_S = 120.0
"""Longer than any prompt that may fit takes, even on a busy machine."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """One prompt to tokenise, and its limit."""

    model: TextModel
    text: str
    is_rendered: bool
    """True if it is a rendered chat, which has its special tokens already."""
    max_tokens: int
    field: str
    """The request's field that errors name."""
    cuts: tuple[int, ...] = ()
    """Places that no token crosses, as in `RenderedChat`."""


def encode_prompt(prompt: PromptText, is_wanted: Callable[[], bool] = lambda: True) -> bytes:
    """Tokenise a prompt and return packed ids, which may exceed `max_tokens`, but by no large factor.

    Raises RefusedError. `is_wanted` is called between pieces: False ends the work.
    """
    try:
        return _encode_prompt(prompt, is_wanted)
    except TokenizerError:
        raise RefusedError(tokenizer_failed(prompt.field)) from None


def _encode_prompt(prompt: PromptText, is_wanted: Callable[[], bool]) -> bytes:
    model, text = prompt.model, prompt.text
    size = _checked_size(prompt)
    if size > USUAL_BYTES * prompt.max_tokens and len(text) > PIECE_CHARS:
        _count(prompt, size, is_wanted)
    first, *others = split_at_cuts(text, prompt.cuts)
    if prompt.is_rendered:
        return pack_ids(model.encode_rendered(first, *others))
    return pack_ids(model.encode_prompt(first) + (model.encode_rendered(*others) if others else []))


def _checked_size(prompt: PromptText) -> int:
    """Return the bytes of the text. Raises RefusedError if it cannot fit."""
    size = len(prompt.text) if prompt.text.isascii() else len(prompt.text.encode())
    longest = prompt.model.longest_token_bytes
    if longest is not None and size > longest * prompt.max_tokens:
        raise prompt_too_long(prompt.field, prompt.max_tokens, size)
    return size


def _count(prompt: PromptText, size: int, is_wanted: Callable[[], bool]) -> None:
    """Count tokens piece by piece. Raises RefusedError once they are far more than fit."""
    tokens = 0
    for start in range(0, len(prompt.text), PIECE_CHARS):
        tokens += len(prompt.model.encode_rendered(prompt.text[start : start + PIECE_CHARS]))
        if tokens > CERTAIN_FACTOR * prompt.max_tokens or not is_wanted():
            raise prompt_too_long(prompt.field, prompt.max_tokens, size)


class PromptEncoder:
    """Tokenises for one event loop without blocking it."""

    def __init__(self) -> None:
        self._lock = FairLock()
        self._thread = ThreadPoolExecutor(1, "tokenise")
        self._health = ProcessHealth("the tokenising thread", MAX_HOLD_S)

    async def encode(self, prompts: Sequence[PromptText | bytes], client: str) -> list[bytes]:
        """Return packed ids of every prompt; bytes are packed already. Clients take turns. Raises RefusedError."""
        return [prompt if isinstance(prompt, bytes) else await self._encode(prompt, client) for prompt in prompts]

    def health_problems(self, now: float) -> list[HealthProblem]:
        problem = self._health.problem(self._lock.held_s(now), now)
        return [] if problem is None else [problem]

    async def _encode(self, prompt: PromptText, client: str) -> bytes:
        is_large = len(prompt.text) > INLINE_CHARS
        if prompt.model.process is not None:
            return await _encode_in_process(prompt, prompt.model.process, is_large, client)
        if not is_large:
            return encode_prompt(prompt)
        wanted = threading.Event()
        wanted.set()
        try:
            return await self._in_turn(client, _in_thread, prompt, wanted)
        finally:
            wanted.clear()

    async def decode(self, model: TextModel, ids: Sequence[int], field: str, client: str) -> str:
        """Return the text of all ids, special tokens included. Clients take turns.

        Raises RefusedError if the tokenizer fails with these ids or does not answer.
        """
        if model.process is not None:
            return await model.process.decode(list(ids), field, client)
        try:
            if len(ids) <= INLINE_IDS:
                return model.decode(list(ids), skip_special=False)
            return await self._in_turn(client, model.decode, list(ids), False)
        except TokenizerError:
            raise RefusedError(tokenizer_failed(field)) from None

    async def _in_turn(self, client: str, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run in the one thread. Two threads would take the interpreter from the event loop twice as often."""

        async def run_in_thread() -> T:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

        try:
            return await self._lock.run(client, run_in_thread, TURN_S)
        except TurnTimeoutError:
            raise RefusedError(tokenizer_unavailable()) from None


async def _encode_in_process(prompt: PromptText, process: TokenizerProcess, is_large: bool, client: str) -> bytes:
    size = _checked_size(prompt)
    question = EncodeText(prompt.text, prompt.is_rendered, prompt.max_tokens, prompt.cuts)
    packed = await process.encode(question, is_large, prompt.field, client)
    if packed is None:
        raise prompt_too_long(prompt.field, prompt.max_tokens, size)
    return packed


def _in_thread(prompt: PromptText, wanted: threading.Event) -> bytes:
    if not wanted.is_set():
        return b""
    try:
        return encode_prompt(prompt, wanted.is_set)
    finally:
        if len(prompt.text) > LARGE_CHARS:
            return_memory()
