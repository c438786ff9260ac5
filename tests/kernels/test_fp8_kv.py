"""KV in float8 on a GPU: what is written, and attention over it, against the references with the same scales."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer, PlacedRows, PrefillRows
from baton_kernels.attention.decode_attention import paged_decode_attention, paged_decode_attention_reference
from baton_kernels.attention.prefill_attention import paged_prefill_attention, paged_prefill_attention_reference
from baton_kernels.attention.rope_kv_write import rope_kv_write, rope_kv_write_reference
from baton_kernels.kv.kv_scales import KV_FP8, to_pool
from baton_testing.engine.paged_kv import PagedKv, paged_kv

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def fp8_kv(contexts: list[int], kv_heads: int, head_dim: int) -> tuple[PagedKv, Tensor, Tensor]:
    """The pool of `paged_kv` in float8 (its inf becomes NaN: e4m3 has none), random scales, tables."""
    kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim, block_tokens=32, dtype=torch.bfloat16)
    scales = torch.exp2(torch.randint(-4, 3, (2, 2, kv_heads), generator=torch.Generator().manual_seed(3)).float())
    pool = (kv.pool.float() / scales[None, :, :, :, None, None]).to(KV_FP8)
    return kv, pool.cuda(), scales.cuda()


@pytest.mark.parametrize("heads", [(8, 2, 128), (6, 2, 32), (4, 4, 64)], ids=str)
class TestOnGpu:
    pytestmark = on_gpu

    def test_decode_attention_equals_reference(self, heads: tuple[int, int, int]) -> None:
        q_heads, kv_heads, head_dim = heads
        kv, pool, scales = fp8_kv([63, 1, 0, 17, 130, 700], kv_heads, head_dim)
        q = torch.randn(6, q_heads, head_dim, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
        rows = DecodeRows(kv.block_tables.cuda(), kv.context_lens.cuda())
        args = (q, KvLayer(pool, 1, scales), rows, 0.1)
        expected = paged_decode_attention_reference(*args)
        # As bfloat16: the result is rounded once to 8 bits, values reach 4 · scale.
        torch.testing.assert_close(paged_decode_attention(*args), expected, atol=4e-2, rtol=2**-6)

    def test_prefill_attention_equals_reference(self, heads: tuple[int, int, int]) -> None:
        q_heads, kv_heads, head_dim = heads
        kv, pool, scales = fp8_kv([16, 80, 70, 300], kv_heads, head_dim)
        starts = torch.tensor([0, 16, 17, 22, 152], dtype=torch.int32).cuda()
        q = torch.randn(152, q_heads, head_dim, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
        rows = PrefillRows(kv.block_tables.cuda(), starts, kv.context_lens.cuda())
        args = (q, KvLayer(pool, 1, scales), rows, 0.1)
        expected = paged_prefill_attention_reference(*args)
        got = paged_prefill_attention(*args)
        torch.testing.assert_close(got, expected, atol=4e-2, rtol=2**-6)

    def test_written_bytes_are_those_of_the_reference(self, heads: tuple[int, int, int]) -> None:
        q_heads, kv_heads, head_dim = heads
        generator = torch.Generator().manual_seed(5)
        scales = torch.exp2(torch.randint(-4, 3, (2, 2, kv_heads), generator=generator).float()).cuda()
        qkv = (torch.randn(5, (q_heads + 2 * kv_heads) * head_dim, generator=generator) * 200).bfloat16().cuda()
        angles = torch.rand(50, head_dim // 2, generator=generator).repeat(1, 2).cuda()
        slots = torch.tensor([3, 64, -1, 130, 7]).cuda()
        pools = [torch.zeros(3, 2, 2, kv_heads, 64, head_dim, device="cuda").to(KV_FP8) for _ in range(2)]
        positions = torch.arange(5).cuda() * 9
        rows = PlacedRows(positions, slots, angles.cos(), angles.sin())
        q = rope_kv_write(qkv.clone(), KvLayer(pools[0], 1, scales), rows, q_heads)
        expected = rope_kv_write_reference(qkv, KvLayer(pools[1], 1, scales), rows, q_heads)
        torch.testing.assert_close(q, expected, atol=1e-2, rtol=2**-6)
        stored, wanted = (pool.view(torch.uint8).int() for pool in pools)
        # A sum rounded otherwise in float32 may fall on the other side of a border between two float8 values.
        assert ((stored - wanted).abs() <= 1).all()
        assert (stored != wanted).float().mean() < 1e-3
        assert not pools[0].float().isnan().any(), "values beyond the range are clamped"


def test_values_are_clamped_and_scales_are_exact() -> None:
    values = torch.tensor([1e6, -1e6, 0.75, 2.0**-12])
    assert to_pool(values, torch.tensor(2.0), KV_FP8).float().tolist() == [448.0, -448.0, 0.375, 0.0]


def test_a_float8_pool_needs_scales_of_its_shape_and_a_gpu() -> None:
    pool = torch.zeros(1, 3, 2, 2, 16, 8).to(KV_FP8)
    with pytest.raises(ValueError, match=r"kv_scales: None .*\(3, 2, 2\) is needed"):
        KvLayer(pool, 0)
    with pytest.raises(ValueError, match="read on GPUs only"):
        KvLayer(pool, 0, torch.ones(3, 2, 2))
    with pytest.raises(ValueError, match=r"only torch\.float8_e4m3fn has scales"):
        KvLayer(pool.float(), 0, torch.ones(3, 2, 2))
