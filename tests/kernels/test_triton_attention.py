"""Triton attention against the references: awkward lengths, heads, groups, windows and prefixes, poison elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.attention.decode_attention import paged_decode_attention_reference
from baton_kernels.attention.prefill_attention import paged_prefill_attention_reference
from baton_testing.engine.paged_kv import paged_kv

CASES = [
    ((1, 1, 8), torch.float32),
    ((3, 3, 64), torch.float32),
    ((6, 1, 16), torch.float32),
    ((6, 2, 24), torch.bfloat16),
    ((10, 2, 128), torch.float32),
    ((10, 2, 128), torch.bfloat16),
]
"""((query heads, kv heads, head_dim), dtype)"""

TOLERANCE = {torch.float32: (2e-5, 0.0), torch.bfloat16: (2e-2, 2**-7)}
"""(absolute, relative). float32: sums in another order. bfloat16: probabilities are rounded to 8 bits before the
product with V (on a GPU), the result once, and the interpreter truncates where a GPU rounds."""


def assert_close(got: Tensor, expected: Tensor) -> None:
    atol, rtol = TOLERANCE[expected.dtype]
    torch.testing.assert_close(got.cpu(), expected.cpu(), atol=atol, rtol=rtol)


@pytest.mark.parametrize("splits", [None, 1, 3])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(("heads", "dtype"), CASES, ids=str)
def test_decode_kernel_equals_reference(
    triton_device: str, heads: tuple[int, int, int], dtype: torch.dtype, window: int | None, splits: int | None
) -> None:
    from baton_kernels.attention.gpu.decode_attention import paged_decode_attention_triton

    q_heads, kv_heads, head_dim = heads
    lengths = [63, 1, 0, 17, 130] if splits is not None else [16, 15]
    kv = paged_kv(lengths, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=triton_device)
    q = torch.randn(len(lengths), q_heads, head_dim, generator=torch.Generator().manual_seed(1))
    args = (q.to(dtype).to(triton_device), kv.layer(1), kv.decode_rows(), 0.25, window)
    assert_close(paged_decode_attention_triton(*args, splits=splits), paged_decode_attention_reference(*args))


@pytest.mark.parametrize("block_tokens", [4, 12, 32, 64])
def test_decode_kernel_takes_other_block_sizes(triton_device: str, block_tokens: int) -> None:
    from baton_kernels.attention.gpu.decode_attention import paged_decode_attention_triton

    kv = paged_kv([65, 63], kv_heads=2, head_dim=16, block_tokens=block_tokens, device=triton_device)
    q = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1)).to(triton_device)
    args = (q, kv.layer(1), kv.decode_rows(), 0.25)
    assert_close(paged_decode_attention_triton(*args, splits=2), paged_decode_attention_reference(*args))


@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize(("heads", "dtype"), CASES, ids=str)
@pytest.mark.parametrize(
    ("query_lens", "contexts"),
    [([1], [1]), ([15, 0, 17], [15, 12, 17]), ([16, 1, 5], [16, 80, 70]), ([63], [150])],
    ids=str,
)
def test_prefill_kernel_equals_reference(
    triton_device: str,
    query_lens: list[int],
    contexts: list[int],
    heads: tuple[int, int, int],
    dtype: torch.dtype,
    window: int | None,
) -> None:
    from baton_kernels.attention.gpu.prefill_attention import paged_prefill_attention_triton

    q_heads, kv_heads, head_dim = heads
    kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=triton_device)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int().to(triton_device)
    q = torch.randn(sum(query_lens), q_heads, head_dim, generator=torch.Generator().manual_seed(1))
    args = (q.to(dtype).to(triton_device), kv.layer(1), kv.prefill_rows(starts), 0.25, window)
    assert_close(paged_prefill_attention_triton(*args), paged_prefill_attention_reference(*args))


def test_prefill_kernel_finds_its_chunks_among_other_rows_and_padding(triton_device: str) -> None:
    """Rows of others before and behind, chunks without rows among and behind them, more than are looked at together."""
    from baton_kernels.attention.gpu.prefill_attention import CHUNK_LANES, paged_prefill_attention_triton

    query_lens = [3, 0, 40, *[1, 0] * (CHUNK_LANES.value // 2), 17, 0]
    contexts = [length and length + 7 for length in query_lens]
    kv = paged_kv(contexts, kv_heads=2, head_dim=16, device=triton_device)
    starts = 5 + torch.tensor([0, *query_lens]).cumsum(0).int().to(triton_device)
    q = torch.randn(int(starts[-1]) + 9, 4, 16, generator=torch.Generator().manual_seed(1)).to(triton_device)
    args = (q, kv.layer(0), kv.prefill_rows(starts), 0.25)
    out = torch.full_like(q, 7.0)
    expected = paged_prefill_attention_reference(*args)
    expected[:5] = expected[starts[-1] :] = 7.0
    assert_close(paged_prefill_attention_triton(*args, out=out), expected)
    assert_close(out, expected)


def test_decode_kernel_writes_where_it_is_told(triton_device: str) -> None:
    from baton_kernels.attention.gpu.decode_attention import paged_decode_attention_triton

    kv = paged_kv([20, 0, 130], kv_heads=2, head_dim=16, device=triton_device)
    q = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(1)).to(triton_device)
    args = (q, kv.layer(0), kv.decode_rows(), 0.25)
    for splits in (1, 2):
        out = torch.full((5, 4, 16), 7.0, device=triton_device)
        paged_decode_attention_triton(*args, out=out[:3], splits=splits)
        assert_close(out[:3], paged_decode_attention_reference(*args))
        assert (out[3:] == 7.0).all()


def test_too_many_query_heads_per_kv_head_are_refused(triton_device: str) -> None:
    from baton_kernels.attention.gpu.prefill_attention import paged_prefill_attention_triton

    kv = paged_kv([1], kv_heads=1, head_dim=16, device=triton_device)
    starts = torch.tensor([0, 1], dtype=torch.int32, device=triton_device)
    q = torch.zeros(1, 65, 16, device=triton_device)
    with pytest.raises(ValueError, match="65 query heads per kv head"):
        paged_prefill_attention_triton(q, kv.layer(0), kv.prefill_rows(starts), 1.0)
