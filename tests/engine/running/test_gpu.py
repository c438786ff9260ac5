"""The same code on a GPU: logits of transformers, draws of the CPU, steps launched ahead, KV moved between devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.running.sampler import Sampler
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine.model_steps import GREEDY, ModelSteps, RunnerSteps, chunk, make_pool, opened
from baton_testing.engine.models import FAMILIES
from baton_wire.kv_shape import Units

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def on_gpu(model: Any, dtype: torch.dtype = torch.float32) -> LoadedModel:
    return load_model(model.directory, dtype, CUDA)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_on_a_gpu_are_those_of_transformers(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    steps = ModelSteps(on_gpu(model))
    whole = steps.prefill(chunk(1, model.tokens))
    first = steps.prefill(chunk(0, model.tokens[:17]))
    second = steps.prefill(chunk(0, model.tokens[17:29], 17))
    decoded = [steps.decode({0: token}) for token in model.tokens[29:40]]
    mixed = steps.forward(
        StepPlan(0, prefill=(chunk(2, model.tokens[:23]),), decode=steps.force({0: model.tokens[40]}))
    )
    expected = model.logits
    atol = 1e-4 * max(1.0, float(expected.std()))  # Gemma's are twice as large as those of others
    torch.testing.assert_close(whole.cpu(), expected, rtol=0, atol=atol)
    torch.testing.assert_close(torch.cat((first, second, *decoded)).cpu(), expected[:40], rtol=0, atol=atol)
    torch.testing.assert_close(mixed.cpu(), torch.cat((expected[40:], expected[:23])), rtol=0, atol=atol)


@pytest.mark.parametrize("family", FAMILIES)
def test_queries_computed_apart_give_the_logits_of_a_step_that_computes_all(
    family: str, tiny: Callable[[str], Any]
) -> None:
    """Three prompts of 240 tokens: of the last layer only three rows are wanted."""
    model = tiny(family)
    loaded, tokens = on_gpu(model), (model.tokens * 8)[:240]
    whole, drawn = (ModelSteps(loaded, slots=3, blocks_per_slot=16) for _ in range(2))
    plan = StepPlan(0, prefill=tuple(chunk(slot, tokens, sample=(slot,)) for slot in range(3)))
    expected = whole.forward(plan)[[239, 479, 719]]
    torch.testing.assert_close(drawn.drawn(plan), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(drawn.pool.tensor, whole.pool.tensor, rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_logits_on_a_gpu_follow_the_float32_ones(dtype: torch.dtype, tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    steps = ModelSteps(on_gpu(model, dtype))
    first = steps.prefill(chunk(0, model.tokens[:20]))
    logits = torch.cat((first, *(steps.decode({0: token}) for token in model.tokens[20:])))
    assert (logits.cpu() - model.logits).abs().max() < (0.25 if dtype == torch.bfloat16 else 0.03)


EXPERTS = ("qwen2-moe", "glm4-moe", "minimax-m2", "ernie4.5-moe", "hunyuan-moe", "llama4", "granite-moe-shared")


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_in_stacks_on_a_gpu_follow_the_float32_logits_of_a_cpu(family: str, tiny: Callable[[str], Any]) -> None:
    """In bfloat16 a GPU multiplies all experts as stacks. Rows for which rounding changes a choice may differ."""
    model = tiny(family)
    steps, exact = ModelSteps(on_gpu(model, torch.bfloat16)), ModelSteps(model.loaded)
    got = [steps.prefill(chunk(0, model.tokens[:30])).cpu()]
    got += [steps.decode({0: token}).cpu() for token in model.tokens[30:40]]
    expected = torch.cat(
        (exact.prefill(chunk(0, model.tokens[:30])), *(exact.decode({0: token}) for token in model.tokens[30:40]))
    )
    errors = (torch.cat(got) - expected).abs().amax(-1) / expected.std()
    assert bool(torch.isfinite(errors).all())
    assert float(errors.median()) < 0.1
    assert float((errors < 0.25).float().mean()) > 0.75


def test_steps_launched_ahead_draw_what_a_cpu_draws(tiny: Callable[[str], Any]) -> None:
    """Inputs of a step are the tokens of one that was not collected; every option of sampling is on for some slot."""
    model = tiny("llama-gqa")
    options = [
        GREEDY,
        replace(GREEDY, temperature=0.9, seed=3, top_p=0.95, top_k=50, logprobs=3),
        replace(GREEDY, temperature=1.2, seed=4, min_p=0.02, frequency_penalty=0.4, repetition_penalty=1.1),
        replace(GREEDY, min_tokens=4, stop_token_ids=(5, 6), logit_bias=((7, 1.5),), logprobs=0),
    ]
    results = []
    for loaded in (model.loaded, on_gpu(model)):
        steps = RunnerSteps(loaded)
        opens = [opened(slot, sampling, prompt=model.tokens) for slot, sampling in enumerate(options)]
        chunks = [chunk(slot, model.tokens, sample=[slot]) for slot in range(4)]
        plans = [steps.plan(opens, chunks), *(steps.plan(decode=[0, 1, 2, 3]) for _ in range(25))]
        collected = []
        steps.runner.launch(plans[0])
        for plan in plans[1:]:
            steps.runner.launch(plan)
            collected.append(steps.runner.collect())
        collected.append(steps.runner.collect())
        assert not steps.runner.is_done()
        assert all(result.duration_s > 0 for result in collected)
        results.append([[entry.ids for entry in result.tokens] for result in collected])
        logprobs = collected[-1].tokens[1].logprobs
        assert logprobs is not None
        assert len(logprobs[0].top) == 3
    assert results[0] == results[1]


def test_a_slot_draws_on_a_gpu_what_it_draws_on_a_cpu() -> None:
    logits = torch.randn(3, 5_000, generator=torch.Generator().manual_seed(0)) * 2
    hot = replace(GREEDY, temperature=1.0, seed=(1 << 62) + 5)
    drawn = []
    for device in (CPU, CUDA):
        sampler = Sampler(5_000, 3, device)
        for slot, sampling in enumerate((hot, replace(hot, top_k=40), replace(hot, top_p=0.8, presence_penalty=1.0))):
            sampler.open(opened(slot, sampling, choice=slot, prompt=[1, 2]))
        drawn.append([sampler.draw((0, 1, 2), logits.to(device)).ids.tolist() for _ in range(50)])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_moves_between_pools_of_a_gpu_and_a_cpu(dtype: torch.dtype, tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    gpu = make_pool(on_gpu(model, dtype), 9, 64)
    cpu = make_pool(load_model(model.directory, dtype, CPU), 40, 16)
    gpu.tensor.normal_()
    stream = bytearray(6 * 16 * gpu.geometry.token_bytes)
    whole = gpu.geometry.whole
    sent, landed = Units([4, 2], 16, 1, 7, whole), Units(list(range(20, 28)), 16, 1, 7, whole)
    gpu.pack(sent, memoryview(stream))
    checksums = cpu.scatter(memoryview(stream), landed)
    assert checksums == gpu.checksums(sent) == cpu.checksums(landed)
    assert gpu.scatter(memoryview(stream), Units([7, 8], 16, 1, 7, whole)) == checksums
    assert torch.equal(gpu.tensor[7, ..., 16:, :], gpu.tensor[4, ..., 16:, :])
    assert gpu.region() is None, "no bytes on the host"
