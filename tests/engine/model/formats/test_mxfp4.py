"""gpt-oss checkpoints in MXFP4: bit by bit against the formula, a whole model against its plain copy, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton_engine.model.errors import WeightsError
from baton_engine.model.formats.unpacking import pack_mxfp4_stack, unpack_mxfp4
from baton_engine.model.loading import load_model
from baton_engine.model.offloading import tensors_of
from baton_engine.model.step_cost import cost_model
from baton_kernels.dense.mxfp4_weight import dequantise_mxfp4_reference
from baton_testing.engine.model_steps import ModelSteps, chunk
from baton_testing.engine.models import write_random_model
from baton_testing.engine.quantised_models import write_mxfp4
from baton_wire.models.errors import ModelConfigError

CPU = torch.device("cpu")
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "sliding_window": None,
    "layer_types": None,
    "rope_parameters": None,
}
NAME = "model.layers.0.mlp.experts.down_proj"


def value_of(code: int) -> float:
    """e2m1: a sign, two bits of exponent with bias 1, one of mantissa; exponent 0 is denormal."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -size if code & 8 else size


def test_every_byte_and_scale_is_unpacked_by_the_formula() -> None:
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 2, 8, 16)
    scales = torch.tensor([0, 1, 100, 126, 127, 128, 200, 250] * 2, dtype=torch.uint8).view(1, 2, 8)
    got = unpack_mxfp4(blocks, scales, "x").flatten().double()
    for number, byte in enumerate(blocks.flatten().tolist()):
        scale = 2.0 ** (int(scales.flatten()[number // 16]) - 127)
        for half, code in enumerate((byte & 15, byte >> 4)):
            assert got[2 * number + half].item() == value_of(code) * scale


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_stack_as_a_gpu_streams_it_holds_the_same_values(in_turn: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    blocks = torch.randint(256, (3, 6, 5, 16), generator=generator, dtype=torch.uint8)
    scales = torch.randint(255, (3, 6, 5), generator=generator, dtype=torch.uint8).clamp(max=192)
    expected = unpack_mxfp4(blocks, scales, "x")
    if in_turn:
        expected = torch.cat((expected[:, ::2], expected[:, 1::2]), 1)
    assert torch.equal(dequantise_mxfp4_reference(pack_mxfp4_stack(blocks, scales, "x", in_turn)), expected)
    scales[1, 2, 3] = 193
    with pytest.raises(WeightsError, match="tensor x_scales: holds 193; allowed on a GPU: 0 to 192"):
        pack_mxfp4_stack(blocks, scales, "x", in_turn)
    scales[1, 2, 3] = 255
    with pytest.raises(WeightsError, match="tensor x_scales: holds 255"):
        pack_mxfp4_stack(blocks, scales, "x", in_turn)


@pytest.fixture(name="pair")
def fixture_pair(tmp_path: Path) -> tuple[Path, Path]:
    """A model in MXFP4, and the same weights as they are."""
    plain = write_random_model(tmp_path / "plain", "gpt-oss", hidden_size=64, intermediate_size=32)
    quantised = tmp_path / "quantised"
    write_mxfp4(plain, quantised)
    return quantised, plain


def test_a_model_in_mxfp4_computes_as_its_plain_copy(pair: tuple[Path, Path]) -> None:
    tokens = list(range(3, 40))
    quantised, plain = (load_model(directory, torch.float32, CPU) for directory in pair)
    got, expected = (ModelSteps(loaded).prefill(chunk(0, tokens)) for loaded in (quantised, plain))
    assert torch.equal(got, expected)
    sizes = [cost_model(loaded.config, 2, 2).expert_bytes for loaded in (quantised, plain)]
    assert sizes[0] / sizes[1] == pytest.approx(4.25 / 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_it_computes_as_its_plain_copy(pair: tuple[Path, Path]) -> None:
    """Experts stay in 4 bits there, and compute what the same values in bfloat16 do."""
    cuda, tokens = torch.device("cuda"), list(range(3, 40))
    quantised, plain = (load_model(directory, torch.bfloat16, cuda) for directory in pair)
    assert any(tensor.dtype == torch.uint8 for layer in quantised.model.layers for tensor in tensors_of(layer))
    got, expected = (ModelSteps(loaded).prefill(chunk(0, tokens)) for loaded in (quantised, plain))
    torch.testing.assert_close(got, expected, rtol=2**-5, atol=2**-5)


def test_random_weights_in_mxfp4_can_be_drawn(pair: tuple[Path, Path]) -> None:
    loaded = load_model(f"random://{pair[0] / 'config.json'}", torch.float32, CPU)
    assert torch.isfinite(ModelSteps(loaded).prefill(chunk(0, [3, 4, 5]))).all()


def spoil(change: Callable[[Tensor], Tensor], end: str) -> Callable[[dict[str, Tensor]], None]:
    def spoilt(tensors: dict[str, Tensor]) -> None:
        tensors[NAME + end] = change(tensors[NAME + end]).contiguous()

    return spoilt


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(f"{NAME}_scales"), f"missing tensors: {NAME}_scales"),
        (spoil(lambda scales: torch.full_like(scales, 255), "_scales"), f"tensor {NAME}_scales: holds 255"),
        (spoil(lambda blocks: blocks[..., :8], "_blocks"), f"tensor {NAME}_blocks: shape"),
        (spoil(lambda blocks: blocks.float(), "_blocks"), f"tensor {NAME}_blocks: has dtype F32; allowed: U8"),
        (spoil(lambda bias: bias[:-1], "_bias"), f"tensor {NAME}_bias: shape"),
    ],
)
def test_what_is_wrong_is_named(
    change: Callable[[dict[str, Tensor]], None], message: str, pair: tuple[Path, Path]
) -> None:
    path = pair[0] / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=message):
        load_model(pair[0], torch.float32, CPU)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden_size": 80}, "quantization_config: .*gate_up_proj_blocks: 80 columns do not divide"),
        (LLAMA, 'quantization_config.quant_method: "mxfp4"'),
    ],
)
def test_configs_that_mxfp4_can_not_hold_are_refused(
    fields: dict[str, object], message: str, pair: tuple[Path, Path]
) -> None:
    path = pair[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(ModelConfigError, match=message):
        load_model(pair[0], torch.float32, CPU)
