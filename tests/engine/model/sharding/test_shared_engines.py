"""Ranks that share encoders, offloaded layers, wrapped models, and scores of prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_engine.collectives.collective import SINGLE_RANK, Collective
from baton_engine.model.loading import load_model
from baton_engine.scheduling.step_plan import PrefillChunk
from baton_testing.engine.encoder_engine import EncoderEngine, encoding_spec, tensor_of
from baton_testing.engine.encoder_folders import write_classifier, write_embedding_model
from baton_testing.engine.model_steps import RunnerSteps, chunk, opened
from baton_testing.engine.sharded_models import (
    CPU,
    TOKENS,
    TOLERANCE,
    load_share,
    logits_of_ranks,
    logits_over_steps,
    write_shareable_model,
)
from baton_testing.engine.threaded_ranks import run_ranks
from baton_testing.published.small_models import write_published
from baton_wire.messages.encoding import Encoding, EncodingKind
from baton_wire.messages.values import PromptLogprob
from baton_wire.models.pooling import Pooling, PoolingSpec

PROMPT = [5, 77, 31, 190, 8, 44, 12]


@pytest.mark.parametrize("tied", [True, False])
def test_vectors_of_a_shared_embedding_model_are_those_of_one_rank(tied: bool, tmp_path: Path) -> None:
    """Its checkpoint has no head."""
    write_embedding_model(tmp_path, "qwen3", Pooling.LAST, tie_word_embeddings=tied)
    pooling = PoolingSpec(Pooling.LAST, is_normalised=True, is_stated=True)

    def encode(collective: Collective) -> torch.Tensor:
        return tensor_of(EncoderEngine(load_share(tmp_path, collective), pooling).encode(encoding_spec(0, PROMPT))[0])

    expected = encode(SINGLE_RANK)
    for vector in run_ranks(2, encode):
        torch.testing.assert_close(vector, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", [EncodingKind.LABELS, EncodingKind.TOKENS])
def test_scores_of_a_shared_model_are_those_of_one_rank(kind: EncodingKind, tmp_path: Path) -> None:
    if kind is EncodingKind.LABELS:
        write_classifier(tmp_path, "qwen2", 3)
    else:
        write_shareable_model(tmp_path, "qwen2", 2)
    encoding = Encoding(kind, token_ids=() if kind is EncodingKind.LABELS else (9, 4, 120))

    def score(collective: Collective) -> torch.Tensor:
        engine = EncoderEngine(load_share(tmp_path, collective), PoolingSpec(Pooling.LAST))
        return tensor_of(engine.encode(encoding_spec(0, PROMPT, encoding))[0])

    expected = score(SINGLE_RANK)
    assert expected.shape == (3,)
    for scores in run_ranks(2, score):
        torch.testing.assert_close(scores, expected, rtol=0, atol=TOLERANCE)


def test_log_probabilities_of_a_prompt_are_over_the_whole_vocabulary(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-gqa", 2)
    prompt = PrefillChunk(0, 0, tuple(TOKENS[:9]), (0,), targets=tuple(TOKENS[1:10]), alternatives=2)

    def score(collective: Collective) -> tuple[PromptLogprob, ...]:
        steps = RunnerSteps(load_share(path, collective))
        return steps.execute([opened(0, prompt=prompt.tokens)], [prompt]).scored[0].logprobs

    expected = score(SINGLE_RANK)
    for entries in run_ranks(4, score):
        assert [entry.rank for entry in entries] == [entry.rank for entry in expected]
        assert [entry.logprob for entry in entries] == pytest.approx([entry.logprob for entry in expected], abs=1e-5)


def test_a_prompt_whose_draw_comes_later_keeps_its_part_of_the_logits(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-gqa", 2)

    def generate(collective: Collective) -> list[int]:
        steps = RunnerSteps(load_share(path, collective))
        kept = PrefillChunk(0, 0, tuple(TOKENS[:9]), (), keeps=True)
        assert not steps.execute([opened(0, prompt=kept.tokens)], [kept]).tokens
        steps.execute([opened(1, prompt=TOKENS[9:20])], [chunk(1, TOKENS[9:20], sample=[1])])
        drawn = steps.execute(prefill=[chunk(0, [], start=9, sample=[0])], decode=[1])
        return [token for entry in drawn.tokens for token in entry.ids]

    expected = generate(SINGLE_RANK)
    assert len(expected) == 2
    assert run_ranks(2, generate) == [expected] * 2


def test_layers_in_the_host_s_memory_are_summed_too(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "qwen3-moe", 2)
    expected = logits_over_steps(load_share(path))

    def run(collective: Collective) -> torch.Tensor:
        return logits_over_steps(load_model(path, torch.float32, CPU, offloaded=2, collective=collective))

    for logits in run_ranks(2, run):
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


def test_the_language_model_of_a_model_for_images_is_shared(tmp_path: Path) -> None:
    path = write_published("mistralai/Mistral-Small-3.1-24B-Instruct-2503", tmp_path).quantised
    torch.testing.assert_close(
        logits_of_ranks(path, 2), logits_over_steps(load_share(path)), rtol=0, atol=2 * TOLERANCE
    )
