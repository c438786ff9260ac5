"""A tokenizer apart says what one in this process says, which it never holds up."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from baton_gateway.answers.formats import AnswerFormat
from baton_gateway.answers.parse_plan import ParsePlan
from baton_gateway.errors import BundleError, RefusedError
from baton_gateway.helper_processes.helper_process import NoAnswer
from baton_gateway.text import text_store, tokenizer_process
from baton_gateway.text.encoding import INLINE_CHARS, PromptEncoder, PromptText
from baton_gateway.text.revision_text import Shown, TextModel, load_text_model
from baton_gateway.text.text_store import TextStore
from baton_testing.gateway.made_tokenizers import (
    SENTENCES,
    MadeTokenizer,
    bundle_hash,
    byte_level,
    metaspace,
    sentencepiece,
    word_pieces,
)
from baton_wire.rules.answer_formats import HARMONY

MAKERS: dict[str, Callable[[], MadeTokenizer]] = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "thinking": lambda: replace(byte_level(), template="<think></think>"),
}
LONG = " ".join(SENTENCES) * (2 * INLINE_CHARS // len(" ".join(SENTENCES)) + 1)


@functools.cache
def bundle(name: str) -> bytes:
    return MAKERS[name]().bundle()


@functools.cache
def here(name: str) -> TextModel:
    return load_text_model(bundle(name), bundle_hash(bundle(name)))


@pytest.fixture
async def store() -> AsyncIterator[TextStore]:
    made = TextStore(large_bytes=0)
    yield made
    await made.stop()


async def loaded(store: TextStore, name: str) -> TextModel:
    model = await store.load(bundle(name), here(name).bundle.hash)
    assert model.process is not None
    return model


async def encoded(model: TextModel, text: str, is_rendered: bool = False, max_tokens: int = 100_000) -> bytes:
    [packed] = await PromptEncoder().encode([PromptText(model, text, is_rendered, max_tokens, "prompt")], "a")
    return packed


@pytest.mark.parametrize("name", MAKERS)
async def test_it_says_what_one_in_this_process_says(
    name: str, store: TextStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    local, loaded_here = here(name), []
    monkeypatch.setattr(text_store, "load_text_model", lambda data, *_: loaded_here.append(data))
    apart = await loaded(store, name)
    assert (loaded_here, apart.tokenizer) == ([], None)
    assert replace(local.bundle, tokenizer_json="") == apart.bundle
    for field in ("eos_ids", "longest_token_bytes", "answer_format"):
        assert getattr(apart, field) == getattr(local, field)
    for text in (*SENTENCES, LONG, "<|begin|>x<|end|>", ""):
        for is_rendered in (False, True):
            assert await encoded(apart, text, is_rendered) == await encoded(local, text, is_rendered)
    ids = local.encode_prompt(SENTENCES[3] + "<|end|>")
    decode = PromptEncoder().decode
    assert await decode(apart, ids, "tokens", "a") == await decode(local, ids, "tokens", "a")
    for token in range(600):
        assert apart.token_text(token) == local.token_text(token)
        assert apart.token_bytes(token) == local.token_bytes(token)
    for shown in Shown:
        assert apart.pieces[shown].hidden_ids == local.pieces[shown].hidden_ids
    for skip in (False, True):
        ours, theirs = (model.choice_text((), skip, False) for model in (apart, local))
        for token in ids:
            assert ours.push((token,), None, None) == theirs.push((token,), None, None)


async def test_a_decoder_that_needs_its_tokenizer_has_it_in_this_process(store: TextStore) -> None:
    data = word_pieces().bundle()
    model = await store.load(data, bundle_hash(data))
    assert model.process is None
    assert model.decode(model.encode_rendered("the fox")) == "the fox"


@pytest.mark.parametrize("thoughts", ["think", "mistral", "seed", HARMONY])
async def test_marks_of_thoughts_are_known_without_asking(thoughts: str, store: TextStore) -> None:
    marks = ParsePlan(AnswerFormat(thoughts)).reasoning_marks
    assert marks is not None
    apart = await loaded(store, "thinking")
    assert [apart.mark_ids(mark) for mark in marks] == [here("thinking").mark_ids(mark) for mark in marks]


@pytest.mark.parametrize(("name", "text"), [("byte_level", "x" * 100_000), ("metaspace", "the cat " * 20_000)])
async def test_what_does_not_fit_is_refused_alike(name: str, text: str, store: TextStore) -> None:
    problems = []
    for model in (await loaded(store, name), here(name)):
        with pytest.raises(RefusedError) as refusal:
            await encoded(model, text, max_tokens=100)
        problems.append(refusal.value.problem)
    assert problems[0] == problems[1]


async def test_a_bundle_that_is_wrong_is_refused_with_its_reason(store: TextStore) -> None:
    with pytest.raises(BundleError, match="announced was 00000"):
        await store.load(bundle("byte_level"), "0" * 64)
    data = b'{"tokenizer.json": "{}"}'
    with pytest.raises(BundleError, match=r"tokenizer\.json: "):
        await store.load(data, bundle_hash(data))


async def test_a_process_that_is_killed_is_loaded_again_for_the_next_question(store: TextStore) -> None:
    model = await loaded(store, "byte_level")
    assert model.process is not None
    for text in ("a", LONG):
        await encoded(model, text)
    for lane in (model.process._small, model.process._large):
        assert lane.process.pid is not None
        os.kill(lane.process.pid, signal.SIGKILL)
    for text in ("a", LONG):
        assert await encoded(model, text) == await encoded(here("byte_level"), text)


async def test_a_process_that_hangs_costs_its_question_a_503(store: TextStore, monkeypatch: pytest.MonkeyPatch) -> None:
    model = await loaded(store, "byte_level")
    assert model.process is not None
    process = model.process._small.process
    exchange = process._exchange
    stopped: list[int] = []

    async def stopping(its: Any, question: bytes, within_s: float) -> bytes | NoAnswer:
        if within_s == tokenizer_process.ENCODE_S:
            os.kill(its.pid, signal.SIGSTOP)
            stopped.append(its.pid)
            within_s = 0.2
        return await exchange(its, question, within_s)

    monkeypatch.setattr(process, "_exchange", stopping)
    with pytest.raises(RefusedError) as refusal:
        await encoded(model, "a")
    problem = refusal.value.problem
    assert (problem.status, problem.code, len(stopped)) == (503, "tokenizer_unavailable", 2)
    monkeypatch.undo()
    assert await encoded(model, "a") == await encoded(here("byte_level"), "a")


async def test_clients_that_left_end_nobody_elses_process(store: TextStore) -> None:
    model = await loaded(store, "byte_level")
    assert model.process is not None
    pid = model.process._small.process.pid
    gone = [asyncio.create_task(encoded(model, "a")) for _ in range(20)]
    for _ in range(3):
        await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    assert await encoded(model, "b") == await encoded(here("byte_level"), "b")
    assert model.process._small.process.pid == pid


async def test_links_that_come_at_once_share_a_load_and_one_that_gives_up_does_not_end_it(store: TextStore) -> None:
    first, second = (asyncio.create_task(loaded(store, "byte_level")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    model = await second
    assert await loaded(store, "byte_level") is model


async def test_processes_of_a_model_that_is_dropped_end_and_come_back_for_who_still_has_it() -> None:
    store = TextStore(capacity=1, large_bytes=0)
    try:
        first = await loaded(store, "byte_level")
        assert first.process is not None
        small = first.process._small
        await loaded(store, "sentencepiece")
        assert small.process.pid is None
        assert await encoded(first, "a") == await encoded(here("byte_level"), "a")
        assert small.process.pid is not None
    finally:
        await store.stop()
    assert small.process.pid is None
