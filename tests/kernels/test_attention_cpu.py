"""Attention references against dense attention by hand, and the CPU paths against the references, poison in every
other slot."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import DecodeRows, PrefillRows
from baton_kernels.attention.cpu.decode_attention import length_groups, paged_decode_attention_cpu
from baton_kernels.attention.cpu.prefill_attention import paged_prefill_attention_cpu
from baton_kernels.attention.decode_attention import paged_decode_attention, paged_decode_attention_reference
from baton_kernels.attention.prefill_attention import paged_prefill_attention, paged_prefill_attention_reference
from baton_testing.engine.paged_kv import dense_attention, paged_kv

TOLERANCE = {torch.float32: (2e-5, 0.0), torch.bfloat16: (2e-2, 2**-7), torch.float16: (2e-3, 2**-9)}
"""(absolute, relative). float32: sums of up to 300 terms in another order. bfloat16, float16: the probabilities may
be rounded before the product with V, and the result once."""

HEADS = [(1, 1, 8), (3, 3, 64), (6, 1, 16), (6, 2, 24), (10, 2, 128), (4, 4, 32)]
LENGTHS = [[1], [15, 16, 17], [63, 1, 0, 16], [0], [40, 40], [300, 290, 7, 150, 299]]


@pytest.mark.parametrize("window", [None, 1, 16, 20])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_decode_reference_is_dense_attention(heads: tuple[int, int, int], window: int | None) -> None:
    q_heads, kv_heads, head_dim = heads
    kv = paged_kv([63, 1, 0, 17], kv_heads=kv_heads, head_dim=head_dim)
    q = torch.randn(4, q_heads, head_dim, generator=torch.Generator().manual_seed(1))
    got = paged_decode_attention_reference(q, kv.layer(1), kv.decode_rows(), 0.3, window)
    for n, context in enumerate(kv.contexts):
        length = context.shape[3]
        expected = dense_attention(q[n : n + 1], context[1], 0.3, length - 1, window) if length else q.new_zeros(1)
        torch.testing.assert_close(got[n].double(), expected[0].double().expand_as(got[n]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [None, 1, 16, 20])
@pytest.mark.parametrize("heads", HEADS[:4], ids=str)
def test_prefill_reference_is_dense_attention(heads: tuple[int, int, int], window: int | None) -> None:
    q_heads, kv_heads, head_dim = heads
    query_lens, contexts = [17, 0, 1, 5], [17, 16, 33, 38]
    kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim)
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    q = torch.randn(23, q_heads, head_dim, generator=torch.Generator().manual_seed(1))
    got = paged_prefill_attention_reference(q, kv.layer(0), kv.prefill_rows(starts), 0.3, window)
    for n, context in enumerate(kv.contexts):
        rows = slice(int(starts[n]), int(starts[n + 1]))
        expected = dense_attention(q[rows], context[0], 0.3, contexts[n] - query_lens[n], window)
        torch.testing.assert_close(got[rows].double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_decode_cpu_path_equals_reference(lengths: list[int], window: int | None, dtype: torch.dtype) -> None:
    for q_heads, kv_heads, head_dim in HEADS:
        kv = paged_kv(lengths, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, layers=3)
        q = torch.randn(len(lengths), q_heads, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
        rows = kv.decode_rows()
        for layer in (0, 2, 1):
            args = (q, kv.layer(layer), rows, 0.25, window)
            expected = paged_decode_attention_reference(*args)
            atol, rtol = TOLERANCE[dtype]
            for attend in (paged_decode_attention_cpu, paged_decode_attention):  # the compiled kernel where it suits
                torch.testing.assert_close(attend(*args), expected, atol=atol, rtol=rtol)


def test_what_an_earlier_layer_derived_from_the_rows_serves_the_next() -> None:
    kv = paged_kv([33, 5], kv_heads=2, head_dim=16)
    q = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(1))
    rows = kv.decode_rows()
    first = paged_decode_attention_cpu(q, kv.layer(0), rows, 0.25)
    for layer, window in ((1, None), (1, 9), (0, None)):
        args = (q, kv.layer(layer)), (0.25, window)
        again = paged_decode_attention_cpu(*args[0], rows, *args[1])
        assert torch.equal(again, paged_decode_attention_cpu(*args[0], kv.decode_rows(), *args[1]))
    assert torch.equal(again, first)


@pytest.mark.parametrize("block_tokens", [4, 64])
def test_decode_cpu_path_takes_other_block_sizes(block_tokens: int) -> None:
    kv = paged_kv([63, 130, 4], kv_heads=2, head_dim=16, block_tokens=block_tokens)
    q = torch.randn(3, 4, 16, generator=torch.Generator().manual_seed(1))
    for window in (None, 9):
        args = (q, kv.layer(1), kv.decode_rows(), 0.25, window)
        torch.testing.assert_close(
            paged_decode_attention(*args), paged_decode_attention_reference(*args), atol=2e-5, rtol=0
        )


@pytest.mark.parametrize("attend", [paged_decode_attention_cpu, paged_decode_attention], ids=["torch", "any"])
def test_a_sequence_with_nan_queries_leaves_its_batch_mates_alone(attend: Callable[..., Tensor]) -> None:
    kv = paged_kv([33, 20, 40], kv_heads=2, head_dim=32)
    q = torch.randn(3, 4, 32, generator=torch.Generator().manual_seed(1))
    args = (kv.layer(1), kv.decode_rows(), 0.25)
    clean = attend(q, *args)
    q[1] = float("nan")
    dirty = attend(q, *args)
    assert dirty[1].isnan().all()
    assert torch.equal(dirty[[0, 2]], clean[[0, 2]])


def test_length_groups_cover_each_non_empty_sequence_once_with_bounded_padding() -> None:
    lengths = torch.randint(0, 3000, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    groups = length_groups(lengths)
    assert sorted(i for group in groups for i in group) == [i for i, length in enumerate(lengths) if length]
    for group in groups:
        longest = max(lengths[i] for i in group)
        assert all(longest - lengths[i] <= max(longest // 4, 64) for i in group)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("window", [None, 1, 16, 20])
@pytest.mark.parametrize(
    ("query_lens", "contexts"),
    [
        ([1], [1]),
        ([15, 16, 17], [15, 16, 17]),
        ([16, 16, 16], [16, 16, 16]),
        ([5, 5, 5], [40, 40, 40]),
        ([63, 0, 1], [63, 12, 64]),
        ([1, 33, 33, 7], [50, 48, 48, 7]),
    ],
    ids=str,
)
def test_prefill_cpu_path_equals_reference(
    query_lens: list[int], contexts: list[int], window: int | None, dtype: torch.dtype
) -> None:
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    for q_heads, kv_heads, head_dim in HEADS:
        kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
        q = torch.randn(int(starts[-1]), q_heads, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype)
        rows = kv.prefill_rows(starts)
        for layer in (1, 0):
            args = (q, kv.layer(layer), rows, 0.25, window)
            expected = paged_prefill_attention_reference(*args)
            atol, rtol = TOLERANCE[dtype]
            for attend in (paged_prefill_attention_cpu, paged_prefill_attention):
                torch.testing.assert_close(attend(*args), expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("block_tokens", [16, 64])
def test_long_prompts_in_chunks_behind_prefixes(block_tokens: int) -> None:
    query_lens, contexts = [130, 1, 70], [130, 517, 333]
    starts = torch.tensor([0, *query_lens]).cumsum(0).int()
    for q_heads, kv_heads, head_dim in [(9, 1, 32), (6, 2, 64)]:
        kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens)
        q = torch.randn(201, q_heads, head_dim, generator=torch.Generator().manual_seed(1))
        for window in (None, 33, 200):
            args = (q, kv.layer(1), kv.prefill_rows(starts), 0.25, window)
            expected = paged_prefill_attention_reference(*args)
            torch.testing.assert_close(paged_prefill_attention(*args), expected, atol=2e-5, rtol=0)


def test_prefill_of_no_rows_gives_no_rows() -> None:
    kv = paged_kv([5], kv_heads=1, head_dim=8)
    starts = torch.zeros(2, dtype=torch.int32)
    got = paged_prefill_attention(torch.zeros(0, 2, 8), kv.layer(0), kv.prefill_rows(starts), 1.0)
    assert got.shape == (0, 2, 8)


@pytest.mark.parametrize("heads", [(4, 2, 16), (4, 2, 32)], ids=["torch", "compiled"])
@pytest.mark.parametrize("window", [None, 9])
def test_chunks_and_decode_rows_share_one_result(heads: tuple[int, int, int], window: int | None) -> None:
    """Rows behind both, padding among both; where chunks follow, a padding row's zeros are written over."""
    q_heads, kv_heads, head_dim = heads
    kv = paged_kv([33, 5, 0, 40, 0, 18], kv_heads=kv_heads, head_dim=head_dim)
    decode = DecodeRows(kv.block_tables[:3], kv.context_lens[:3])
    starts = torch.tensor([2, 9, 9, 27], dtype=torch.int32)
    prefill = PrefillRows(kv.block_tables[3:], starts, kv.context_lens[3:])
    q = torch.randn(30, q_heads, head_dim, generator=torch.Generator().manual_seed(1))
    out = torch.full_like(q, 7.0)
    paged_decode_attention(q[:3], kv.layer(1), decode, 0.25, window, out[:3])
    paged_prefill_attention(q, kv.layer(1), prefill, 0.25, window, out)
    expected = torch.full_like(q, 7.0)
    expected[:2] = paged_decode_attention_reference(q[:3], kv.layer(1), decode, 0.25, window)[:2]
    expected[2:27] = paged_prefill_attention_reference(q, kv.layer(1), prefill, 0.25, window)[2:27]
    torch.testing.assert_close(out, expected, atol=2e-5, rtol=0)
