"""Decode attention of sequences whose splits follow their lengths: equal to the reference, and no seat too many."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_kernels.attention.decode_attention import paged_decode_attention_reference
from baton_testing.engine.paged_kv import paged_kv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "lengths",
    [[16, 15, 14, 2, 1], [1_500, 70, 0, 1, 64, 65, 63], [700, 650, 600, 128, 129, 127, 0, 0, 0]],
    ids=["short", "one long", "padding"],
)
def test_long_and_short_contexts_equal_the_reference(
    triton_device: str, lengths: list[int], dtype: torch.dtype
) -> None:
    from baton_kernels.attention.gpu.decode_attention import paged_decode_attention_triton

    kv = paged_kv(lengths, kv_heads=2, head_dim=16, dtype=dtype, device=triton_device)
    q = torch.randn(len(lengths), 8, 16, generator=torch.Generator().manual_seed(1)).to(dtype).to(triton_device)
    args = (q, kv.layer(1), kv.decode_rows(), 0.25)
    atol, rtol = (2e-5, 0.0) if dtype is torch.float32 else (2e-2, 2**-7)
    out = torch.full_like(q, float("nan"))
    got = paged_decode_attention_triton(*args, out=out)
    torch.testing.assert_close(got.cpu(), paged_decode_attention_reference(*args).cpu(), atol=atol, rtol=rtol)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=40), st.sampled_from([1, 5, 33, 66]))
def test_every_sequence_sits_once_and_long_ones_more_often_and_first(lengths: list[int], spare: int) -> None:
    sits(lengths, spare)


def test_more_rows_than_are_compared_at_a_time_sit_so_too() -> None:
    draw = random.Random(1)
    sits([draw.choice([0, 64, draw.randint(1, 9_000)]) for _ in range(600)], 66)


def sits(lengths: list[int], spare: int) -> None:
    pytest.importorskip("triton")
    from baton_kernels.attention.gpu.decode_attention import BLOCK_N, MAX_SPLITS
    from baton_kernels.attention.gpu.decode_seats import deal_seats

    device = "cuda" if torch.cuda.is_available() else "cpu"
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    seats = deal_seats(lens, spare, BLOCK_N, MAX_SPLITS).tolist()
    taken = [seat for seat in seats if seat[0] >= 0]
    assert all(seat[0] == -1 for seat in seats[len(taken) :]), "what is free is at the end"
    counts = [sum(seat[0] == row for seat in taken) for row in range(len(lengths))]
    longest_first = sorted(range(len(lengths)), key=lambda row: -(-lengths[row] // counts[row]), reverse=True)
    assert taken == [[row, split, counts[row]] for row in longest_first for split in range(counts[row])]
    share = max(128, -(-sum(lengths) // spare))
    for length, count in zip(lengths, counts, strict=True):
        assert 1 <= count <= MAX_SPLITS
        assert count == 1 or length >= 0.75 * share
        assert length <= 1.75 * share * count or count == MAX_SPLITS
