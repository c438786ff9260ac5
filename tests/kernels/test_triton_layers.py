"""Triton RMSNorm, SwiGLU and RoPE + KV write against the references, odd sizes and padding included."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.attention.rope_kv_write import rope_kv_write_reference
from baton_kernels.dense.rms_norm import add_rms_norm_reference, rms_norm_reference
from baton_kernels.dense.swiglu import swiglu_reference

DTYPES = [torch.float32, torch.bfloat16]
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2**-6}
"""float32: another order of sums and another exp. bfloat16: two roundings, each of which the interpreter truncates."""


def assert_close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.cpu(), expected.cpu(), atol=1e-5, rtol=RELATIVE[expected.dtype])


def random(shape: tuple[int, ...], dtype: torch.dtype, device: str, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 8), (17, 63), (3, 1000), (0, 16)], ids=str)
def test_norm_kernels_equal_references(triton_device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    from baton_kernels.dense.gpu.rms_norm import add_rms_norm_triton, rms_norm_triton

    x, residual = (random(shape, dtype, triton_device, seed) for seed in (0, 1))
    weight = random((shape[1],), dtype, triton_device, 2)
    assert_close(rms_norm_triton(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5))
    normed, total = add_rms_norm_triton(x, residual, weight, 1e-5)
    expected_normed, expected_total = add_rms_norm_reference(x, residual, weight, 1e-5)
    assert_close(total, expected_total)
    # bfloat16 sums differ by a unit in the last place where the interpreter truncates: norm what the kernel summed.
    assert_close(normed, rms_norm_reference(total, weight, 1e-5))
    assert_close(expected_normed, rms_norm_reference(expected_total, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (17, 126), (3, 2200), (0, 8)], ids=str)
def test_swiglu_kernel_equals_reference(triton_device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    from baton_kernels.dense.gpu.swiglu import swiglu_triton

    gate_up = random(shape, dtype, triton_device, 0) * 4
    assert_close(swiglu_triton(gate_up), swiglu_reference(gate_up))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("heads", [(1, 1, 8), (3, 3, 64), (6, 2, 24), (5, 1, 128)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 15])
def test_rope_kernel_equals_reference(
    triton_device: str, tokens: int, heads: tuple[int, int, int], with_norm: bool, dtype: torch.dtype
) -> None:
    from baton_kernels.attention.gpu.rope_kv_write import rope_kv_write_triton

    q_heads, kv_heads, head_dim = heads
    qkv = random((tokens, (q_heads + 2 * kv_heads) * head_dim), dtype, triton_device, 0)
    generator = torch.Generator().manual_seed(3)
    positions = torch.randint(0, 64, (tokens,), generator=generator).to(triton_device)
    slots = torch.randperm(48, generator=generator)[:tokens]
    slots[1::4] = -1
    slots = slots.to(triton_device)
    angles = torch.rand(64, head_dim // 2, generator=generator) * 6
    cos, sin = (torch.cat((part, part), -1).to(triton_device) for part in (angles.cos(), angles.sin()))
    weight = random((head_dim,), dtype, triton_device, 1)
    norms = HeadNorms(weight, weight, 1e-5) if with_norm else None
    rows = PlacedRows(positions, slots, cos, sin)
    expected_pool = random((3, 2, 2, kv_heads, 16, head_dim), dtype, triton_device, 2)
    got_pool = expected_pool.clone()
    got = rope_kv_write_triton(qkv, KvLayer(got_pool, 1), rows, q_heads, norms)
    expected = rope_kv_write_reference(qkv, KvLayer(expected_pool, 1), rows, q_heads, norms)
    assert_close(got, expected)
    assert_close(got_pool, expected_pool)
