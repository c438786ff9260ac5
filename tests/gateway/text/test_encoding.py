"""Tokenising costs what the context bounds: counted in characters that reach the tokenizer, never in time."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any, cast

import pytest

from baton_gateway.errors import RefusedError
from baton_gateway.text.encoding import (
    CERTAIN_FACTOR,
    INLINE_CHARS,
    PIECE_CHARS,
    USUAL_BYTES,
    PromptEncoder,
    PromptText,
    encode_prompt,
)
from baton_gateway.text.revision_text import TextModel, load_text_model
from baton_testing.gateway.made_tokenizers import MadeTokenizer, bundle_hash, byte_level, metaspace
from baton_wire.messages.values import pack_ids, unpack_ids


def loaded(tokenizer: MadeTokenizer) -> TextModel:
    return load_text_model(tokenizer.bundle(), bundle_hash(tokenizer.bundle()))


BYTES, UNBOUNDED = loaded(byte_level()), loaded(metaspace())


class CountingTokenizer:
    """A tokenizer that counts what it is given, and in which thread."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.chars = 0
        self.threads: set[str] = set()
        self.held: threading.Event | None = None
        self.begun = threading.Event()

    def encode_batch_fast(self, texts: list[str], add_special_tokens: bool) -> Any:
        self.chars += sum(map(len, texts))
        self.threads.add(threading.current_thread().name)
        self.begun.set()
        if self.held is not None:
            assert self.held.wait(60)
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


def counting(model: TextModel) -> tuple[TextModel, CountingTokenizer]:
    tokenizer = CountingTokenizer(model.tokenizer)
    return replace(model, tokenizer=cast(Any, tokenizer)), tokenizer


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised() -> None:
    model, tokenizer = counting(BYTES)
    assert model.longest_token_bytes is not None
    longest = model.longest_token_bytes * 100
    with pytest.raises(RefusedError, match="maximum context length is 100 tokens") as refusal:
        encode_prompt(PromptText(model, "x" * (longest + 1), False, 100, "prompt[3]"))
    assert (refusal.value.problem.param, refusal.value.problem.code) == ("prompt[3]", "context_length_exceeded")
    assert tokenizer.chars == 0
    encode_prompt(PromptText(model, "x" * longest, False, 100, "prompt"))
    with pytest.raises(RefusedError):
        encode_prompt(PromptText(model, "é" * longest, True, 100, "messages"))
    assert tokenizer.chars == longest


@pytest.mark.parametrize("model", [BYTES, UNBOUNDED], ids=["bounded", "unbounded"])
def test_the_largest_text_costs_what_the_context_allows(model: TextModel) -> None:
    model, tokenizer = counting(replace(model, longest_token_bytes=None))
    with pytest.raises(RefusedError, match="of 8388600 bytes"):
        encode_prompt(PromptText(model, "the cat " * (8_388_600 // 8), False, 4_096, "prompt"))
    assert tokenizer.chars <= (CERTAIN_FACTOR * 4_096) * 16 + PIECE_CHARS


def test_a_long_text_of_long_words_is_counted_and_then_tokenised_whole() -> None:
    model, tokenizer = counting(BYTES)
    text = "the quick brown fox jumps over the lazy dog. " * 2_000
    ids = unpack_ids(encode_prompt(PromptText(model, text, False, len(text) // (USUAL_BYTES + 1), "prompt")))
    assert ids == BYTES.encode_prompt(text)
    assert tokenizer.chars == 2 * len(text)
    tokenizer.chars = 0
    packed = encode_prompt(PromptText(model, text, True, len(text) // USUAL_BYTES, "messages"))
    assert unpack_ids(packed) == ids[1:]
    assert tokenizer.chars == len(text)


async def test_large_prompts_are_tokenised_in_a_thread_and_small_ones_where_they_are() -> None:
    model, tokenizer = counting(BYTES)
    encoder = PromptEncoder()
    small, large = "x" * INLINE_CHARS, "x" * (INLINE_CHARS + 1)
    packed = await encoder.encode([PromptText(model, small, False, 9_999, "prompt[0]"), pack_ids([1, 2])], "a")
    assert list(map(unpack_ids, packed)) == [BYTES.encode_prompt(small), [1, 2]]
    assert tokenizer.threads == {threading.current_thread().name}
    tokenizer.threads.clear()
    await encoder.encode([PromptText(model, large, False, 9_999, "prompt")], "a")
    assert threading.current_thread().name not in tokenizer.threads


async def test_the_loop_turns_while_a_prompt_is_tokenised_and_a_client_that_left_stops_it() -> None:
    model, tokenizer = counting(replace(BYTES, longest_token_bytes=None))
    tokenizer.held = threading.Event()
    encoder = PromptEncoder()
    text = "the cat " * (1 << 17)
    task = asyncio.create_task(encoder.encode([PromptText(model, text, False, 50_000, "prompt")], "a"))
    await asyncio.to_thread(tokenizer.begun.wait, 10)
    other = asyncio.create_task(encoder.encode([PromptText(model, "y" * 5_000, False, 9_999, "prompt")], "b"))
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    await asyncio.sleep(0)  # what the task then does of its own comes before the thread goes on
    tokenizer.held.set()
    assert await other == [pack_ids(BYTES.encode_prompt("y" * 5_000))]
    assert tokenizer.chars == PIECE_CHARS + 5_000
