"""Encoded prompts: the vectors of sentence-transformers' formula, the same to the bit in any company."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from baton_engine.running.encoded_prompts import HiddenStateEncoder
from baton_engine.scheduling.events import Drawn, PromptEncoded, SequenceSpec
from baton_engine.scheduling.step_plan import PrefillChunk, StepPlan
from baton_testing.engine.encoder_engine import (
    EMBEDDING,
    EncoderEngine,
    encoding_spec,
    key_of,
    reference_embedding,
    tensor_of,
)
from baton_testing.engine.models import FAMILIES, reference_logits
from baton_wire.messages.encoding import Encoding, EncodingKind
from baton_wire.messages.values import SamplingParams
from baton_wire.models.pooling import Pooling, PoolingSpec

LENGTHS = (1, 2, 3, 9, 16, 17, 40)
NORMALISED = [PoolingSpec(method) for method in Pooling]


def draw_prompts(seed: int, lengths: tuple[int, ...] = LENGTHS, vocab: int = 199) -> list[list[int]]:
    dice = random.Random(seed)
    return [[dice.randrange(3, vocab) for _ in range(length)] for length in lengths]


def answer_spec(number: int, tokens: list[int]) -> SequenceSpec:
    sampling = SamplingParams(max_tokens=6, temperature=0.0)
    return SequenceSpec(key_of(number), tuple(tokens), len(tokens), (0,), sampling, "", 1e9)


@pytest.mark.parametrize("is_cuda", [False, True])
def test_a_step_without_encoded_prompts_passes_nothing_through_the_model(is_cuda: bool) -> None:
    model = cast(Any, SimpleNamespace(embedding=SimpleNamespace(is_cuda=is_cuda)))
    encoder = HiddenStateEncoder(model, cast(Any, None), cast(Any, None), PoolingSpec(Pooling.LAST))
    chunk = PrefillChunk(0, 0, (5, 6), (0,))
    assert encoder.run(StepPlan(0, decode=(1,))) == ()
    assert encoder.run(StepPlan(0, prefill=(chunk,), decode=(1,))) == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_of_every_family_are_those_of_transformers(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    prompts = draw_prompts(1)
    if family == "phi3-longrope":  # transformers takes other factors for short prompts (docs/models.md)
        prompts = [prompt for prompt in prompts if len(prompt) > 16]
    for pooling in NORMALISED:
        results = EncoderEngine(model.loaded, pooling).encode(*map(encoding_spec, range(len(prompts)), prompts))
        for number, prompt in enumerate(prompts):
            expected = reference_embedding(model.reference, prompt, pooling)
            torch.testing.assert_close(tensor_of(results[number]), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3", "mistral-window", "gemma3"])
@pytest.mark.parametrize("pooling", NORMALISED, ids=str)
def test_a_prompt_has_the_same_bits_in_any_company(
    family: str, pooling: PoolingSpec, tiny: Callable[[str], Any]
) -> None:
    model = tiny(family)
    prompts = draw_prompts(2, (1, 5, 40, 3, 17, 64, 9, 2, 33))
    alone = [EncoderEngine(model.loaded, pooling).encode(encoding_spec(0, prompt))[0] for prompt in prompts]
    dice = random.Random(3)
    for _ in range(3):
        engine = EncoderEngine(model.loaded, pooling, max_step_tokens=dice.choice([64, 100, 8_192]))
        order = dice.sample(range(len(prompts)), len(prompts))
        chats = [answer_spec(100 + number, prompt) for number, prompt in enumerate(prompts[:3])]
        specs = [*chats[:1], *(encoding_spec(number, prompts[number]) for number in order), *chats[1:]]
        if engine.scheduler.config.chunk < 64:  # a long prompt is cut elsewhere: another deployment
            specs = [spec for spec in specs if len(spec.tokens) <= engine.scheduler.config.chunk]
        results = engine.encode(*specs)
        assert results == {number: alone[number] for number in order if number in results}
        assert len(results) == sum(spec.encoding is not None for spec in specs)


def test_answers_have_the_same_tokens_next_to_encoded_prompts(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    prompts = draw_prompts(4)

    def tokens(*company: SequenceSpec) -> list[int]:
        events = EncoderEngine(model.loaded, NORMALISED[0]).run(answer_spec(50, prompts[3]), *company)
        return [token for event in events if isinstance(event, Drawn) for token in event.ids]

    assert tokens() == tokens(*map(encoding_spec, range(len(prompts)), prompts))


@pytest.mark.parametrize("pooling", NORMALISED, ids=str)
def test_a_prompt_longer_than_a_step_is_encoded_piece_by_piece(
    pooling: PoolingSpec, tiny: Callable[[str], Any]
) -> None:
    model = tiny("qwen3")
    (prompt,) = draw_prompts(5, (150,))
    engine = EncoderEngine(model.loaded, pooling, max_step_tokens=64)
    (result,) = engine.encode(encoding_spec(0, prompt)).values()
    expected = reference_embedding(model.reference, prompt, pooling)
    torch.testing.assert_close(tensor_of(result), expected, rtol=0, atol=1e-5)


def test_a_cut_vector_is_normalised_after_the_cut_and_a_raw_one_is_not(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    (prompt,) = draw_prompts(6, (12,))
    encodings = [
        Encoding(EncodingKind.EMBEDDING, dimensions=7),
        Encoding(EncodingKind.EMBEDDING, dimensions=7, is_normalised=False),
    ]
    engine = EncoderEngine(model.loaded, NORMALISED[0])
    cut, raw = (tensor_of(engine.encode(encoding_spec(0, prompt, encoding))[0]) for encoding in encodings)
    torch.testing.assert_close(cut, reference_embedding(model.reference, prompt, NORMALISED[0], 7), rtol=0, atol=1e-5)
    torch.testing.assert_close(raw / raw.norm(), cut, rtol=0, atol=1e-6)
    assert abs(float(raw.norm()) - 1) > 0.01


def test_logits_of_tokens_are_those_after_the_prompt(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3-tied-yarn")
    (prompt,) = draw_prompts(7, (12,))
    encoding = Encoding(EncodingKind.TOKENS, token_ids=(9, 4, 120))
    result = tensor_of(EncoderEngine(model.loaded, NORMALISED[1]).encode(encoding_spec(0, prompt, encoding))[0])
    expected = reference_logits(model.reference, prompt)[-1, [9, 4, 120]]
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)


def test_nothing_is_held_after_results_and_nothing_enters_the_prefix_cache(tiny: Callable[[str], Any]) -> None:
    engine = EncoderEngine(tiny("qwen3").loaded, NORMALISED[0])
    prompts = draw_prompts(8, (64, 64, 5))
    free = engine.scheduler.stats().blocks_free
    engine.encode(*map(encoding_spec, range(3), prompts))
    stats = engine.scheduler.stats()
    assert (stats.blocks_free, stats.blocks_cached, stats.running, stats.waiting) == (free, 0, 0, 0)
    engine.scheduler.check()


def test_a_cached_answer_does_not_change_a_vector(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    (prompt,) = draw_prompts(9, (64,))
    engine = EncoderEngine(model.loaded, NORMALISED[0])
    engine.run(answer_spec(5, prompt), answer_spec(6, prompt[:40]))
    alone = EncoderEngine(model.loaded, NORMALISED[0]).encode(encoding_spec(0, prompt))
    assert engine.encode(encoding_spec(0, prompt)) == alone


def test_a_cancelled_prompt_gives_no_result_and_no_block_stays(tiny: Callable[[str], Any]) -> None:
    engine = EncoderEngine(tiny("qwen3").loaded, NORMALISED[0])
    scheduler = engine.scheduler
    for number, prompt in enumerate(draw_prompts(10, (20, 30))):
        scheduler.submit(encoding_spec(number, prompt), 0.0)
    assert scheduler.plan(0.0) is not None
    scheduler.cancel(key_of(0), None, 0.0)
    scheduler.cancel(key_of(1), 0, 0.0)
    scheduler.check()
    assert not any(isinstance(event, PromptEncoded) for event in scheduler.events())


def test_a_prompt_may_fill_the_whole_context_and_one_token_more_is_refused(tiny: Callable[[str], Any]) -> None:
    loaded = tiny("qwen3").loaded
    engine = EncoderEngine(loaded, NORMALISED[0])
    whole, more = draw_prompts(11, (loaded.max_context_tokens, loaded.max_context_tokens + 1))
    events = engine.run(encoding_spec(0, whole, EMBEDDING), encoding_spec(1, more))
    kinds = {event.key: type(event).__name__ for event in events}
    assert kinds == {key_of(0): "PromptEncoded", key_of(1): "Failed"}
