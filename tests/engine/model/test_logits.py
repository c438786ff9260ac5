"""Teacher-forced logits against transformers on random models of every family, float32, within 1e-4 (design §9).

Where transformers in float32 is itself far from its own float64, as with Gemma 3, three times that is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baton_engine.model.loading import load_model
from baton_engine.scheduling.step_plan import StepPlan
from baton_testing.engine.model_steps import ModelSteps, blocks_of, chunk, opened, updates
from baton_testing.engine.models import FAMILIES, reference_logits

families = pytest.mark.parametrize("family", FAMILIES)


def assert_close(model: Any, logits: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=model.tolerance)


@families
def test_a_whole_prompt_gives_the_logits_of_transformers(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    assert_close(model, ModelSteps(model.loaded).prefill(chunk(0, model.tokens)), model.logits)


def long_prompt(reference: Any) -> tuple[list[int], torch.Tensor]:
    """Many rows, and their logits in transformers."""
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(3, reference.config.vocab_size, (201,), generator=generator).tolist()
    return tokens, reference_logits(reference, tokens)


@pytest.mark.parametrize("family", ["llama-gqa", "llama-biases", "mistral-window", "qwen2", "qwen3"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])
def test_a_long_prompt_gives_its_logits_with_and_without_compiled_kernels(
    family: str, compiled: bool, tiny: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(family)
    tokens, expected = long_prompt(model.reference)
    loaded = model.loaded
    if not compiled:
        for module in ("baton_kernels.dense.cpu.compiled_linear", "baton_kernels.attention.cpu.compiled_attention"):
            monkeypatch.setattr(f"{module}.suits", lambda dtype: False)
        loaded = load_model(model.directory, torch.float32, torch.device("cpu"))
    steps = ModelSteps(loaded, blocks_per_slot=13)
    mate = model.tokens[:5]
    got = steps.prefill(chunk(0, tokens[:-1]), chunk(1, mate))
    assert_close(model, got, torch.cat((expected[:-1], model.logits[:5])))
    assert_close(model, steps.decode({0: tokens[-1]}), expected[-1:])


@families
def test_a_prompt_cut_at_any_place_gives_the_same_logits(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    steps = ModelSteps(model.loaded)
    for border in range(1, len(model.tokens)):
        first = steps.prefill(chunk(0, model.tokens[:border]))
        second = steps.prefill(chunk(0, model.tokens[border:], start=border))
        assert_close(model, torch.cat((first, second)), model.logits)


@pytest.mark.parametrize("length", [1, 2, 7, 16, 17])
def test_chunks_of_any_length_give_the_same_logits(length: int, tiny: Callable[[str], Any]) -> None:
    model = tiny("mistral-window")
    steps = ModelSteps(model.loaded)
    starts = range(0, len(model.tokens), length)
    parts = [steps.prefill(chunk(0, model.tokens[start : start + length], start)) for start in starts]
    assert_close(model, torch.cat(parts), model.logits)


@pytest.mark.parametrize("block_tokens", [1, 4, 32, 64])
def test_any_block_size_gives_the_same_logits(block_tokens: int, tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    steps = ModelSteps(model.loaded, slots=2, block_tokens=block_tokens, blocks_per_slot=41)
    first = steps.prefill(chunk(1, model.tokens[:20]))
    rest = [steps.decode({1: token}) for token in model.tokens[20:]]
    assert_close(model, torch.cat((first, *rest)), model.logits)


@families
def test_decoding_one_by_one_gives_the_logits_of_the_whole_prompt(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    steps = ModelSteps(model.loaded)
    assert_close(model, torch.cat([steps.decode({2: token}) for token in model.tokens]), model.logits)


@families
def test_a_prefix_already_in_the_pool_of_any_number_of_blocks_gives_the_same_logits(
    family: str, tiny: Callable[[str], Any]
) -> None:
    model = tiny(family)
    steps = ModelSteps(model.loaded, block_tokens=8)
    steps.prefill(chunk(0, model.tokens))
    groups = model.loaded.model.kv_groups
    tables = [[blocks_of(slot * groups + group, 4 * groups, 8) for group in range(groups)] for slot in (0, 1)]
    for cached in range(1, len(model.tokens) // 8 + 1):
        steps.state.open([opened(1, context=cached * 8)])
        for group, (shared, own) in enumerate(zip(*tables, strict=True)):
            steps.state.set_blocks(updates(1, [*shared[:cached], *own[cached:]], group))
        logits = steps.prefill(chunk(1, model.tokens[cached * 8 :], start=cached * 8))
        assert_close(model, logits, model.logits[cached * 8 :])


@families
def test_prefill_and_decode_of_several_sequences_share_a_step(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    steps = ModelSteps(model.loaded)
    others = [model.tokens[::-1], model.tokens[5:] + model.tokens[:5], model.tokens[1::2]]
    expected = [reference_logits(model.reference, tokens) for tokens in others]
    steps.prefill(chunk(0, model.tokens[:30]), chunk(1, others[0][:17]), chunk(2, others[1][:4]))
    decode = steps.force({0: model.tokens[30], 1: others[0][17]})
    mixed = steps.forward(StepPlan(0, prefill=(chunk(2, others[1][4:33], 4), chunk(3, others[2])), decode=decode))
    parts = (model.logits[30:31], expected[0][17:18], expected[1][4:33], expected[2])
    assert_close(model, mixed, torch.cat(parts))
    after = steps.decode({3: 7, 1: others[0][18], 2: others[1][33], 0: model.tokens[31]})
    with_seven = reference_logits(model.reference, [*others[2], 7])
    last = (with_seven[-1:], expected[0][18:19], expected[1][33:34], model.logits[31:32])
    assert_close(model, after, torch.cat(last))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bit_models_follow_the_float32_logits(dtype: torch.dtype, tiny: Callable[[str], Any]) -> None:
    from baton_engine.model.loading import load_model

    model = tiny("qwen3")
    loaded = load_model(model.directory, dtype, torch.device("cpu"))
    steps = ModelSteps(loaded)
    first = steps.prefill(chunk(0, model.tokens[:20]))
    logits = torch.cat((first, *(steps.decode({0: token}) for token in model.tokens[20:])))
    assert logits.dtype == torch.float32
    # bfloat16 keeps 8 bits: errors of a few hundredths on logits of deviation 1 after three layers.
    assert (logits - model.logits).abs().max() < (0.25 if dtype == torch.bfloat16 else 0.03)
