"""The Gluon kernels, which no interpreter runs: compiled on a Hopper GPU against the references."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.attention.prefill_attention import paged_prefill_attention_reference
from baton_kernels.dense.linear import linear_reference
from baton_testing.engine.paged_kv import paged_kv

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")]


@pytest.mark.parametrize(
    ("dtype", "block_tokens"), [(torch.bfloat16, 16), (torch.bfloat16, 32), (torch.float16, 64)], ids=str
)
@pytest.mark.parametrize("heads", [(8, 2, 128), (7, 1, 128), (4, 4, 64), (12, 2, 64), (16, 1, 128)], ids=str)
@pytest.mark.parametrize(
    ("query_lens", "contexts"),
    [
        ([1], [1]),
        ([64], [64]),
        ([100, 0, 33], [100, 12, 33]),
        ([16, 1, 5, 130], [16, 80, 70, 300]),
        ([300], [1000]),
        ([257, 129], [257, 129]),
    ],
    ids=str,
)
def test_prefill_attention_equals_reference(
    query_lens: list[int], contexts: list[int], heads: tuple[int, int, int], dtype: torch.dtype, block_tokens: int
) -> None:
    """Lengths at and around every border; everything outside the contexts is NaN, inf or an impossible block."""
    from baton_kernels.attention.gpu.prefill_attention_hopper import paged_prefill_attention_hopper

    q_heads, kv_heads, head_dim = heads
    kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=dtype, device="cuda")
    starts = torch.tensor([0, *query_lens]).cumsum(0).int().cuda()
    q = torch.randn(sum(query_lens), q_heads, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype).cuda()
    args = (q, kv.layer(1), kv.prefill_rows(starts), 0.25)
    expected = paged_prefill_attention_reference(*args)
    # Probabilities are rounded to 8 or 11 bits before the product with V, the result once.
    atol, rtol = (2e-2, 2**-7) if dtype == torch.bfloat16 else (2e-3, 2**-9)
    torch.testing.assert_close(paged_prefill_attention_hopper(*args), expected, atol=atol, rtol=rtol)


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("window", [None, 1, 20, 128, 200, 1000])
@pytest.mark.parametrize("block_tokens", [16, 64])
@pytest.mark.parametrize(
    "heads", [(8, 2, 128), (7, 1, 128), (64, 8, 64), (4, 4, 64), (8, 4, 256), (6, 2, 256)], ids=str
)
@pytest.mark.parametrize(
    ("query_lens", "contexts"),
    [([1], [1]), ([1, 64], [129, 64]), ([100, 0, 33], [100, 12, 333]), ([300], [1000]), ([257, 600], [257, 600])],
    ids=str,
)
def test_prefill_attention_with_window_and_sinks_equals_reference(
    query_lens: list[int],
    contexts: list[int],
    heads: tuple[int, int, int],
    block_tokens: int,
    window: int | None,
    has_sinks: bool,
) -> None:
    """Blocks that no query sees are poison too."""
    from baton_kernels.attention.gpu.prefill_attention_hopper import paged_prefill_attention_hopper

    q_heads, kv_heads, head_dim = heads
    dtype = torch.bfloat16
    kv = paged_kv(contexts, kv_heads=kv_heads, head_dim=head_dim, block_tokens=block_tokens, dtype=dtype, device="cuda")
    starts = torch.tensor([0, *query_lens]).cumsum(0).int().cuda()
    q = torch.randn(sum(query_lens), q_heads, head_dim, generator=torch.Generator().manual_seed(1)).to(dtype).cuda()
    sinks = torch.linspace(-30.0, 6.0, q_heads).cuda() if has_sinks else None
    args = (q, kv.layer(1), kv.prefill_rows(starts), 0.25, window)
    expected = paged_prefill_attention_reference(*args, sinks=sinks)
    if window is not None:
        spare = next(block for block in range(len(kv.pool)) if not bool((kv.block_tables == block).any()))
        for n, (count, context) in enumerate(zip(query_lens, contexts, strict=True)):
            kv.block_tables[n, : max(0, context - count - window + 1) // block_tokens] = spare
    got = paged_prefill_attention_hopper(*args, sinks=sinks)
    torch.testing.assert_close(got, expected, atol=2e-2, rtol=2**-7)
    assert torch.equal(got, paged_prefill_attention_hopper(*args, sinks=sinks))


def test_a_sink_far_above_every_score_leaves_nothing_and_no_nan() -> None:
    from baton_kernels.attention.gpu.prefill_attention_hopper import paged_prefill_attention_hopper

    kv = paged_kv([200], kv_heads=2, head_dim=64, block_tokens=64, dtype=torch.bfloat16, device="cuda")
    starts = torch.tensor([0, 200], dtype=torch.int32, device="cuda")
    q = torch.randn(200, 4, 64, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    sinks = torch.tensor([0.0, 95.0, 500.0, -500.0], device="cuda")
    args = (q, kv.layer(0), kv.prefill_rows(starts), 0.25, 128)
    expected = paged_prefill_attention_reference(*args, sinks=sinks)
    torch.testing.assert_close(paged_prefill_attention_hopper(*args, sinks=sinks), expected, atol=2e-2, rtol=2**-7)


def test_prefill_attention_finds_its_chunks_among_other_rows_and_padding() -> None:
    from baton_kernels.attention.gpu.prefill_attention_hopper import paged_prefill_attention_hopper

    query_lens = [3, 0, 70, *[1, 0] * 8, 33, 0]
    contexts = [length and length + 7 for length in query_lens]
    kv = paged_kv(contexts, kv_heads=2, head_dim=128, block_tokens=64, dtype=torch.bfloat16, device="cuda")
    starts = 5 + torch.tensor([0, *query_lens]).cumsum(0).int().cuda()
    q = torch.randn(int(starts[-1]) + 9, 8, 128, generator=torch.Generator().manual_seed(1)).bfloat16().cuda()
    args = (q, kv.layer(1), kv.prefill_rows(starts), 0.25)
    expected = paged_prefill_attention_reference(*args)
    expected[:5] = expected[starts[-1] :] = 7.0
    got = paged_prefill_attention_hopper(*args, out=torch.full_like(q, 7.0))
    torch.testing.assert_close(got, expected, atol=2e-2, rtol=2**-7)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 17, 33, 64, 65, 128])
@pytest.mark.parametrize(("features", "columns"), [(96, 72), (400, 136), (6144, 1024), (1000, 3080)])
def test_streamed_linear_equals_reference(features: int, columns: int, rows: int, has_bias: bool, gated: bool) -> None:
    from baton_kernels.dense.gpu.linear import default_config
    from baton_kernels.dense.gpu.streamed_linear import streamed_linear

    generator = torch.Generator("cuda").manual_seed(rows)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    x, weight = draw(rows, columns), draw(features, columns) * columns**-0.5
    bias = draw(features) if has_bias else None
    got = streamed_linear(x, weight, bias, default_config(rows, features, columns, gated), gated)
    expected = linear_reference(x, weight, bias, gated)
    assert not got.isnan().any()
    # Sums in another order, then rounded to 8 bits like the reference's: up to one step of the rounding apart.
    torch.testing.assert_close(got, expected, atol=2e-2, rtol=2**-6)
