"""Attention with sinks: the references against the formula, every backend against the references."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.attention.cpu.decode_attention import paged_decode_attention_cpu
from baton_kernels.attention.cpu.prefill_attention import paged_prefill_attention_cpu
from baton_kernels.attention.decode_attention import paged_decode_attention, paged_decode_attention_reference
from baton_kernels.attention.prefill_attention import paged_prefill_attention, paged_prefill_attention_reference
from baton_testing.engine.paged_kv import paged_kv

HEADS = [(8, 2, 32), (4, 4, 16), (16, 1, 64)]
windows = pytest.mark.parametrize("window", [None, 1, 20])
heads_of_all = pytest.mark.parametrize("heads", HEADS, ids=str)
LENGTHS = [63, 1, 17, 130]
QUERIES, CONTEXTS = [15, 0, 17, 1], [15, 12, 80, 40]


def sinks_of(q_heads: int) -> Tensor:
    """Sinks that take no weight, some, and nearly all of it."""
    return torch.linspace(-30.0, 6.0, q_heads)


def queries(rows: int, q_heads: int, head_dim: int) -> Tensor:
    return torch.randn(rows, q_heads, head_dim, generator=torch.Generator().manual_seed(1))


@heads_of_all
@windows
def test_a_sink_takes_its_share_of_the_weights(heads: tuple[int, int, int], window: int | None) -> None:
    """Out of the softmax with a sink: the one without, times the share of all that keys have."""
    q_heads, kv_heads, head_dim = heads
    kv = paged_kv(LENGTHS, kv_heads=kv_heads, head_dim=head_dim)
    q, sinks = queries(len(LENGTHS), q_heads, head_dim), sinks_of(q_heads)
    plain = paged_decode_attention_reference(q, kv.layer(0), kv.decode_rows(), 0.25, window)
    got = paged_decode_attention_reference(q, kv.layer(0), kv.decode_rows(), 0.25, window, sinks)
    for n, length in enumerate(LENGTHS):
        first = 0 if window is None else max(0, length - window)
        key = kv.contexts[n][0][0].double()[:, first:].repeat_interleave(q_heads // kv_heads, 0)
        total = (torch.einsum("hd,hjd->hj", q[n].double(), key) * 0.25).exp().sum(-1)
        share = total / (total + sinks.double().exp())
        torch.testing.assert_close(got[n].double(), plain[n].double() * share[:, None], atol=1e-5, rtol=0)


@heads_of_all
@windows
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cpu_paths_equal_the_references(heads: tuple[int, int, int], window: int | None, dtype: torch.dtype) -> None:
    q_heads, kv_heads, head_dim = heads
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    sinks = sinks_of(q_heads)
    kv = paged_kv(LENGTHS, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    q = queries(len(LENGTHS), q_heads, head_dim).to(dtype)
    args = (q, kv.layer(1), kv.decode_rows(), 0.25, window)
    expected = paged_decode_attention_reference(*args, sinks=sinks)
    for decode in (paged_decode_attention_cpu, paged_decode_attention):
        torch.testing.assert_close(decode(*args, sinks=sinks), expected, atol=tolerance, rtol=0)
    kv = paged_kv(CONTEXTS, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    starts = torch.tensor([0, *QUERIES]).cumsum(0).int()
    q = queries(sum(QUERIES), q_heads, head_dim).to(dtype)
    chunks = (q, kv.layer(1), kv.prefill_rows(starts), 0.25, window)
    expected = paged_prefill_attention_reference(*chunks, sinks=sinks)
    for prefill in (paged_prefill_attention_cpu, paged_prefill_attention):
        torch.testing.assert_close(prefill(*chunks, sinks=sinks), expected, atol=tolerance, rtol=0)


def test_a_sink_far_above_every_score_leaves_nothing_and_no_nan() -> None:
    kv = paged_kv([40], kv_heads=2, head_dim=32)
    q = queries(1, 4, 32)
    sinks = torch.tensor([0.0, 95.0, 500.0, -500.0])
    for decode in (paged_decode_attention_cpu, paged_decode_attention):
        got = decode(q, kv.layer(0), kv.decode_rows(), 0.25, None, sinks=sinks)
        expected = paged_decode_attention_reference(q, kv.layer(0), kv.decode_rows(), 0.25, None, sinks=sinks)
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=0)


@heads_of_all
@windows
@pytest.mark.parametrize("splits", [None, 1, 3])
def test_decode_kernel_equals_the_reference(
    triton_device: str, heads: tuple[int, int, int], window: int | None, splits: int | None
) -> None:
    from baton_kernels.attention.gpu.decode_attention import paged_decode_attention_triton

    q_heads, kv_heads, head_dim = heads
    kv = paged_kv([63, 1, 0, 130], kv_heads=kv_heads, head_dim=head_dim, device=triton_device)
    q = queries(4, q_heads, head_dim).to(triton_device)
    args = (q, kv.layer(1), kv.decode_rows(), 0.25, window)
    sinks = sinks_of(q_heads).to(triton_device)
    got = paged_decode_attention_triton(*args, sinks=sinks, splits=splits)
    torch.testing.assert_close(got, paged_decode_attention_reference(*args, sinks=sinks), atol=2e-5, rtol=0)


@heads_of_all
@windows
def test_prefill_kernel_equals_the_reference(
    triton_device: str, heads: tuple[int, int, int], window: int | None
) -> None:
    from baton_kernels.attention.gpu.prefill_attention import paged_prefill_attention_triton

    q_heads, kv_heads, head_dim = heads
    kv = paged_kv(CONTEXTS, kv_heads=kv_heads, head_dim=head_dim, device=triton_device)
    starts = torch.tensor([0, *QUERIES]).cumsum(0).int().to(triton_device)
    q = queries(sum(QUERIES), q_heads, head_dim).to(triton_device)
    args = (q, kv.layer(1), kv.prefill_rows(starts), 0.25, window)
    sinks = sinks_of(q_heads).to(triton_device)
    got = paged_prefill_attention_triton(*args, sinks=sinks)
    torch.testing.assert_close(got, paged_prefill_attention_reference(*args, sinks=sinks), atol=2e-5, rtol=0)
