"""Prompts to packed token ids, at a cost that the model's context bounds, however long the text is.

A text that cannot fit is refused by its bytes before it is tokenised. Where nothing is known of the longest token, or
it is very long, the text is first counted in pieces until it is clear that it does not fit. The library lets other
threads run while it tokenises a batch, so large prompts are tokenised in one thread of their own, one at a time. A
tokenizer that is apart does the same where it is.
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
from baton_gateway.helper_processes.fair_lock import FairTurns
from baton_gateway.helper_processes.process_lane import TURN_S, HealthProblem, ProcessHealth
from baton_gateway.text.returned_memory import return_memory
from baton_gateway.text.revision_text import TextModel
from baton_gateway.text.special_token_escape import pieces_of
from baton_gateway.text.tokenizer_process import EncodeText, TokenizerApart
from baton_wire.messages.values import pack_ids

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

INLINE_CHARS = 4_096
"""Shorter prompts are tokenised where they are: some 1 ms."""
INLINE_IDS = 1_024
"""Fewer ids become text where they are."""
PIECE_CHARS = 16_384
USUAL_BYTES = 4
"""A token of ordinary text stands for about so many bytes. Text that would fit if it were ordinary is not counted."""
COUNTED_TWICE = 2
"""Pieces that together have so many times the tokens that fit leave no doubt. A cut adds a few tokens at most."""
LARGE_CHARS = 128 << 10
"""Tokenising as much takes tens of MB, which the C library keeps unless it is asked for them."""

MAY_HOLD_S = 120.0
"""Longer than any prompt that may fit takes, on a machine that is busy."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """One prompt to tokenise, and what it may have."""

    model: TextModel
    text: str
    is_rendered: bool
    """A rendered chat, which has its special tokens already."""
    max_tokens: int
    field: str
    """What errors name."""
    cuts: tuple[int, ...] = ()
    """Places that no token goes across, as in `RenderedChat`."""


def encode_prompt(prompt: PromptText, is_wanted: Callable[[], bool] = lambda: True) -> bytes:
    """Packed ids of a prompt; they may still be more than `max_tokens`, but by no large factor.

    Raises RefusedError. `is_wanted` is asked between pieces.
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
    first, *others = pieces_of(text, prompt.cuts)
    if prompt.is_rendered:
        return pack_ids(model.encode_rendered(first, *others))
    return pack_ids(model.encode_prompt(first) + (model.encode_rendered(*others) if others else []))


def _checked_size(prompt: PromptText) -> int:
    """Bytes of the text. Raises RefusedError when so many cannot fit."""
    size = len(prompt.text) if prompt.text.isascii() else len(prompt.text.encode())
    longest = prompt.model.longest_token_bytes
    if longest is not None and size > longest * prompt.max_tokens:
        raise prompt_too_long(prompt.field, prompt.max_tokens, size)
    return size


def _count(prompt: PromptText, size: int, is_wanted: Callable[[], bool]) -> None:
    """Raises RefusedError when the pieces of the text have far more tokens than fit."""
    tokens = 0
    for start in range(0, len(prompt.text), PIECE_CHARS):
        tokens += len(prompt.model.encode_rendered(prompt.text[start : start + PIECE_CHARS]))
        if tokens > COUNTED_TWICE * prompt.max_tokens or not is_wanted():
            raise prompt_too_long(prompt.field, prompt.max_tokens, size)


class PromptEncoder:
    """Tokenises for one event loop without holding it."""

    def __init__(self) -> None:
        self._turns = FairTurns()
        self._thread = ThreadPoolExecutor(1, "tokenise")
        self._health = ProcessHealth("the thread that tokenises", MAY_HOLD_S)

    async def encode(self, prompts: Sequence[PromptText | bytes], who: str) -> list[bytes]:
        """Packed ids of every prompt; what is packed stays. `who` takes turns with others. Raises RefusedError."""
        return [prompt if isinstance(prompt, bytes) else await self._encode(prompt, who) for prompt in prompts]

    def ailments(self, now: float) -> list[HealthProblem]:
        ailment = self._health.ailment(self._turns.held_s(now), now)
        return [] if ailment is None else [ailment]

    async def _encode(self, prompt: PromptText, who: str) -> bytes:
        is_large = len(prompt.text) > INLINE_CHARS
        if prompt.model.apart is not None:
            return await _encode_apart(prompt, prompt.model.apart, is_large, who)
        if not is_large:
            return encode_prompt(prompt)
        wanted = threading.Event()
        wanted.set()
        try:
            return await self._in_turn(who, _in_thread, prompt, wanted)
        finally:
            wanted.clear()

    async def decode(self, model: TextModel, ids: Sequence[int], field: str, who: str) -> str:
        """The text of all ids, special tokens shown; `who` takes turns with others.

        Raises RefusedError: the tokenizer fails with these ids, or does not answer.
        """
        if model.apart is not None:
            return await model.apart.decode(list(ids), field, who)
        try:
            if len(ids) <= INLINE_IDS:
                return model.decode(list(ids), skip_special=False)
            return await self._in_turn(who, model.decode, list(ids), False)
        except TokenizerError:
            raise RefusedError(tokenizer_failed(field)) from None

    async def _in_turn(self, who: str, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run in the one thread. Two at once would take the interpreter from the event loop twice as often."""
        try:
            async with self._turns.turn(who, TURN_S):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        except TurnTimeoutError:
            raise RefusedError(tokenizer_unavailable()) from None


async def _encode_apart(prompt: PromptText, apart: TokenizerApart, is_large: bool, who: str) -> bytes:
    size = _checked_size(prompt)
    question = EncodeText(prompt.text, prompt.is_rendered, prompt.max_tokens, prompt.cuts)
    packed = await apart.encode(question, is_large, prompt.field, who)
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
