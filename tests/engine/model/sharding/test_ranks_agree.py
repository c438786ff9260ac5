"""Ranks that share a model compute its logits: every family, one KV head to as many as attention heads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_testing.engine.model_steps import RunnerSteps
from baton_testing.engine.models import FAMILIES
from baton_testing.engine.sharded_models import (
    DEGREES,
    KV_HEADS,
    OWN_ERROR,
    TOKENS,
    TOLERANCE,
    load_share,
    logits_of_ranks,
    logits_over_steps,
    write_shareable_model,
)
from baton_testing.engine.threaded_ranks import ThreadCollective, run_ranks
from baton_wire.messages.values import SamplingParams

CELLS = [(family, DEGREES[at % 3], KV_HEADS[at // 3 % 3]) for at, family in enumerate(FAMILIES)]
"""Each family once; `campaigns.tensor_parallel` has all of them."""


@pytest.mark.parametrize(("family", "ranks", "kv_heads"), CELLS)
def test_ranks_have_the_logits_of_one(family: str, ranks: int, kv_heads: int, tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, family, kv_heads)
    expected = logits_over_steps(load_share(path))
    tolerance = OWN_ERROR.get(family, TOLERANCE)
    torch.testing.assert_close(logits_of_ranks(path, ranks), expected, rtol=0, atol=tolerance)


def test_a_second_run_has_the_same_bits(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "qwen2", 2)
    assert torch.equal(logits_of_ranks(path, 4), logits_of_ranks(path, 4))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=1_000, temperature=0.0),
        SamplingParams(max_tokens=1_000, temperature=1.0, seed=7),
        SamplingParams(max_tokens=1_000, temperature=0.8, seed=7, top_p=0.9, top_k=20),
        SamplingParams(max_tokens=1_000, temperature=0.0, presence_penalty=1.0, logprobs=2),
    ],
    ids=["greedy", "noise", "truncated", "penalised"],
)
def test_ranks_draw_the_tokens_of_one(sampling: SamplingParams, tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-gqa", 2)

    def generate(collective: ThreadCollective | None) -> list[int]:
        loaded = load_share(path) if collective is None else load_share(path, collective)
        return RunnerSteps(loaded).generate(TOKENS[:20], 24, sampling)

    expected = generate(None)
    assert len(set(expected)) > 4
    assert run_ranks(4, generate) == [expected] * 4


def test_random_weights_are_the_same_numbers_for_ranks(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "gpt-oss", 2)
    source = f"random://{path / 'config.json'}?seed=3"
    torch.testing.assert_close(
        logits_of_ranks(source, 2), logits_over_steps(load_share(source)), rtol=0, atol=TOLERANCE
    )


def test_a_loaded_share_has_the_whole_config_and_hash(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-gqa", 2)
    whole = load_share(path)
    assert whole.share_config == whole.config

    shares = run_ranks(4, lambda collective: load_share(path, collective))
    assert {share.model_hash for share in shares} == {whole.model_hash}
    assert {share.config for share in shares} == {whole.config}
    attention = shares[3].share_config.attention
    assert (attention.q_heads, attention.kv_heads) == (2, 1)
    assert shares[3].share_config.vocab_size == whole.config.vocab_size
    assert shares[3].model.kv_scales.shape[-1] == 1


def test_scales_of_a_float8_pool_are_those_of_the_rank_s_heads(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "qwen2", 8)
    whole = load_share(path).model.kv_scales
    shares = run_ranks(4, lambda collective: load_share(path, collective).model.kv_scales)
    assert torch.equal(torch.cat(shares, -1), whole)


def test_loading_makes_no_call_of_the_collective(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-tied", 2)

    def calls(collective: ThreadCollective) -> int:
        load_share(path, collective)
        return collective.calls

    assert run_ranks(2, calls) == [0, 0]


def test_a_step_sums_twice_a_layer_and_gathers_the_logits_once(tmp_path: Path) -> None:
    path = write_shareable_model(tmp_path, "llama-mha", 8)

    def calls(collective: ThreadCollective) -> int:
        logits_over_steps(load_share(path, collective))
        return collective.calls

    assert run_ranks(2, calls) == [6 * (2 * 3 + 1)] * 2


def test_bfloat16_sums_of_ranks_stay_near_those_of_one(tmp_path: Path) -> None:
    """Each rank rounds its part before it is added; the error is not larger for it."""
    path = write_shareable_model(tmp_path, "llama-gqa", 2)
    exact = logits_over_steps(load_share(path)).double()
    one, ranks = (
        logits.double()
        for logits in (
            logits_over_steps(load_share(path, dtype=torch.bfloat16)),
            logits_of_ranks(path, 2, torch.bfloat16),
        )
    )
    own_error = (one - exact).square().mean().sqrt()
    assert (ranks - exact).square().mean().sqrt() < 1.5 * own_error
