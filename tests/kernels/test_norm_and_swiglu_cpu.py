"""RMSNorm and SwiGLU: references against Hugging Face's layers, CPU paths against the references."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from baton_kernels.dense.rms_norm import add_rms_norm, add_rms_norm_reference, rms_norm, rms_norm_reference
from baton_kernels.dense.swiglu import swiglu, swiglu_reference

SHAPES = [(1, 8), (17, 63), (3, 1000), (0, 16)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm_is_hugging_face_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=random).mul(3).to(dtype)
    layer = LlamaRMSNorm(shape[1], eps=1e-5).to(dtype)
    layer.weight.data.copy_(torch.rand(shape[1], generator=random))
    with torch.no_grad():
        expected = layer(x)
    assert torch.equal(rms_norm_reference(x, layer.weight.data, 1e-5), expected)
    torch.testing.assert_close(rms_norm(x, layer.weight.data, 1e-5), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm_is_add_then_norm_and_keeps_its_inputs(shape: tuple[int, int], dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x, residual = (torch.randn(shape, generator=random).to(dtype) for _ in range(2))
    weight = torch.rand(shape[1], generator=random).to(dtype)
    before = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, residual, weight, 1e-5)
    expected_normed, expected_total = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected_normed, atol=1e-6, rtol=1e-6)
    assert torch.equal(x, before[0])
    assert torch.equal(residual, before[1])


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6), torch.zeros(2, 8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (17, 126), (0, 8)], ids=str)
def test_swiglu_is_silu_of_gate_times_up(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate_up = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    by_hand = gate / (1 + torch.exp(-gate)) * up
    relative = 1e-6 if dtype == torch.float32 else 2**-7  # two bfloat16 roundings
    torch.testing.assert_close(swiglu_reference(gate_up).double(), by_hand, atol=1e-6, rtol=relative)
    torch.testing.assert_close(swiglu(gate_up), swiglu_reference(gate_up), atol=1e-6, rtol=relative)
