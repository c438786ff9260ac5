"""Whole quantised models on a Hopper GPU, compared with transformers and dequantised weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from baton_engine.model.layers.experts import StackedExperts
from baton_engine.model.layers.mlp import QuantisedMlp
from baton_engine.model.layers.norm import RmsNorm, RoundingRmsNorm, WeightedRmsNorm
from baton_engine.model.loading import load_model
from baton_kernels.experts.expert_inputs import QuantisedStacks
from baton_testing.engine import quantised_models as written
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import reference_logits, reference_model, write_random_model

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")]

SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "head_dim": 64}
EXPERTS: dict[str, Any] = {**SIZES, "moe_intermediate_size": 256, "mlp_only_layers": []}
FORMS = {"fp8 block": written.fp8("block"), "fp8 channel": written.fp8("channel"), "int8": written.int8_channels()}
FORMS |= {"int4": written.packed(4, 128, True), "awq": written.awq(128)}
FORMS["fp8 powers"] = written.powers("blocks")


@pytest.mark.parametrize(
    ("family", "sizes", "block"), [("llama-gqa", SIZES, QuantisedMlp), ("qwen3-moe", EXPERTS, QuantisedStacks)]
)
@pytest.mark.parametrize("name", FORMS)
def test_logits_are_those_of_transformers_but_for_rounding(
    family: str, sizes: dict[str, Any], block: type, name: str, tmp_path: Path
) -> None:
    """Compare 40 rows, whose activations keep 16 bits, and 120, rounded to 8 bits, in experts too; e4m3 has three
    bits after its first. A router that is undecided may go either way: the middle one counts."""
    source = write_random_model(tmp_path / "model", family, **sizes)
    made = written.write_quantised(source, tmp_path / "copies", FORMS[name])
    loaded = load_model(made.quantised, torch.bfloat16, torch.device("cuda"))
    blocks = [layer.mlp for layer in loaded.model.layers]
    assert all(isinstance(mlp.stacks if isinstance(mlp, StackedExperts) else mlp, block) for mlp in blocks)
    reference = reference_model(made.dense)
    for count, allowed in ((40, 0.03), (120, 0.15 if name.startswith("fp8") else 0.06)):
        tokens = [3 + 7 * at % 190 for at in range(count)]
        expected = reference_logits(reference, tokens)
        got = ModelSteps(loaded).prefill(chunk(0, tokens)).cpu()
        apart = (got - expected).norm(dim=1) / expected.norm(dim=1)
        assert float(apart.median()) < allowed
        assert not got.isnan().any()


@pytest.mark.parametrize("layout", ["mxfp4", "mxfp8", "rows"])
@pytest.mark.parametrize(("family", "sizes"), [("llama-gqa", SIZES), ("qwen3-moe", EXPERTS)])
def test_powers_of_two_for_32_columns_are_held_in_16_bits(
    family: str, sizes: dict[str, Any], layout: str, tmp_path: Path
) -> None:
    source = write_random_model(tmp_path / "model", family, **sizes)
    made = written.write_quantised(source, tmp_path / "copies", written.powers(layout))
    quantised, dense = (load_model(copy, torch.bfloat16, torch.device("cuda")) for copy in (made.quantised, made.dense))
    tokens = [3 + 7 * at % 190 for at in range(40)]
    got, expected = (ModelSteps(loaded).prefill(chunk(0, tokens)) for loaded in (quantised, dense))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("name", ["fp8 channel", "int8"])
def test_norms_that_round_for_the_next_product_change_no_bit(name: str, tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "model", "llama-gqa", **SIZES)
    made = written.write_quantised(source, tmp_path / "copies", FORMS[name])
    loaded = load_model(made.quantised, torch.bfloat16, torch.device("cuda"))

    def plain(norm: RmsNorm) -> RmsNorm:
        return WeightedRmsNorm(norm.weight, norm.eps) if isinstance(norm, RoundingRmsNorm) else norm

    layers = tuple(
        replace(layer, mlp_norm=plain(layer.mlp_norm), next_norm=plain(layer.next_norm))
        for layer in loaded.model.layers
    )
    assert any(isinstance(layer.mlp_norm, RoundingRmsNorm) for layer in loaded.model.layers)
    assert any(isinstance(layer.next_norm, RoundingRmsNorm) for layer in loaded.model.layers)
    apart = replace(loaded, model=replace(loaded.model, layers=layers))
    tokens = [3 + 7 * at % 190 for at in range(120)]
    fused, separate = (ModelSteps(model).prefill(chunk(0, tokens)) for model in (loaded, apart))
    assert torch.equal(fused, separate)
