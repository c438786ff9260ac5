"""RoPE + QK-norm + KV write: the reference against Hugging Face's layers, the CPU path against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.attention.cpu.rope_kv_write import rope_kv_write_cpu
from baton_kernels.attention.rope_kv_write import rope_kv_write, rope_kv_write_reference

SHAPES = [(1, 1, 8), (3, 3, 64), (6, 2, 24), (5, 1, 128)]


def rope_tables(head_dim: int, positions: int = 64) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / 10000 ** (torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(positions).float(), inverse)
    return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_reference_is_hugging_face_rope_and_norm(heads: tuple[int, int, int], with_norm: bool) -> None:
    q_heads, kv_heads, head_dim = heads
    random = torch.Generator().manual_seed(0)
    qkv = torch.randn(5, (q_heads + 2 * kv_heads) * head_dim, generator=random)
    positions, slots = torch.tensor([3, 4, 5, 0, 63]), torch.tensor([17, 18, 31, 0, 40])
    cos, sin = rope_tables(head_dim)
    heads_of_all = qkv.view(5, -1, head_dim)
    q, k, v = heads_of_all[:, :q_heads], heads_of_all[:, q_heads:-kv_heads], heads_of_all[:, -kv_heads:]
    q_norm, k_norm = Qwen3RMSNorm(head_dim, eps=1e-5), Qwen3RMSNorm(head_dim, eps=1e-5)
    with torch.no_grad():
        q_norm.weight.copy_(torch.rand(head_dim, generator=random))
        k_norm.weight.copy_(torch.rand(head_dim, generator=random))
        if with_norm:
            q, k = q_norm(q), k_norm(k)
        hf_q, hf_k = apply_rotary_pos_emb(q[None], k[None], cos[positions][None], sin[positions][None], unsqueeze_dim=2)
    pool = torch.full((3, 2, 2, kv_heads, 16, head_dim), float("nan"))
    norms = HeadNorms(q_norm.weight.data, k_norm.weight.data, 1e-5) if with_norm else None
    got = rope_kv_write_reference(qkv, KvLayer(pool, 1), PlacedRows(positions, slots, cos, sin), q_heads, norms)
    torch.testing.assert_close(got, hf_q[0], atol=1e-6, rtol=1e-6)
    written = pool.isfinite().clone()
    for t, slot in enumerate(slots.tolist()):
        torch.testing.assert_close(pool[slot // 16, 1, 0, :, slot % 16], hf_k[0, t], atol=1e-6, rtol=1e-6)
        assert torch.equal(pool[slot // 16, 1, 1, :, slot % 16], v[t])
        written[slot // 16, 1, :, :, slot % 16] = False
    assert not written.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("tokens", [1, 17])
@pytest.mark.parametrize("padding", ["none", "some", "all"])
def test_cpu_path_equals_reference(tokens: int, with_norm: bool, dtype: torch.dtype, padding: str) -> None:
    for q_heads, kv_heads, head_dim in SHAPES:
        random = torch.Generator().manual_seed(0)
        qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim, generator=random).to(dtype)
        positions = torch.randint(0, 64, (tokens,), generator=random)
        slots = torch.randperm(48, generator=random)[:tokens]
        if padding != "none":
            slots[:: 1 if padding == "all" else 3] = -1
        cos, sin = rope_tables(head_dim)
        weight = torch.rand(head_dim, generator=random).to(dtype)
        norms = HeadNorms(weight, weight, 1e-5) if with_norm else None
        rows = PlacedRows(positions, slots, cos, sin)
        expected_pool = torch.zeros(3, 2, 2, kv_heads, 16, head_dim, dtype=dtype)
        got_pool = expected_pool.clone()
        expected = rope_kv_write_reference(qkv, KvLayer(expected_pool, 1), rows, q_heads, norms)
        for write in (rope_kv_write_cpu, rope_kv_write):
            got = write(qkv.clone(), KvLayer(got_pool, 1), rows, q_heads, norms)
            tolerance = 1e-5 if dtype == torch.float32 else 4e-2  # one bfloat16 rounding of values up to 5
            torch.testing.assert_close(got, expected, atol=tolerance, rtol=0)
            torch.testing.assert_close(got_pool, expected_pool, atol=tolerance, rtol=0)
