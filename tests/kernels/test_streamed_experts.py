"""Experts streamed by once: how pairs are sorted into row blocks, and the products beside the formula."""

from __future__ import annotations

import pytest
import torch

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.mark.parametrize("x_rows", [8, 16])
@pytest.mark.parametrize(
    ("tokens", "count", "per_token"), [(1, 4, 2), (33, 6, 3), (70, 5, 1), (1024, 4, 4), (1400, 130, 3), (9000, 32, 4)]
)
@pytest.mark.parametrize("chunk", [None, 16, 1024])
def test_pairs_are_sorted_by_expert_into_row_blocks(
    triton_device: str,
    tokens: int,
    count: int,
    per_token: int,
    x_rows: int,
    chunk: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With counts by chunk, or by looking at all pairs, up to some thousand."""
    from baton_kernels.experts.gpu import expert_sort
    from baton_kernels.experts.gpu.expert_sort import sort_by_expert
    from baton_kernels.experts.gpu.streamed_experts import sum_of_experts

    if tokens > 100 and (triton_device == "cpu" or (chunk == 16 and tokens > 1024)):
        pytest.skip("each pair is a program, which is slow in the interpreter; so many chunks of 16 are too large")
    if chunk is not None:
        monkeypatch.setattr(expert_sort, "FEW_PAIRS", 0)
        monkeypatch.setattr(expert_sort, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, 40, generator=generator).to(triton_device)
    scores = torch.rand(tokens, count, generator=generator)
    scores[:, 1] = 2.0  # every token's first choice
    scores[:, 2] = -1.0  # no token's
    experts = scores.argsort(-1, descending=True)[:, :per_token].contiguous().to(triton_device)
    plan = sort_by_expert(x, experts, count, x_rows)

    flat = experts.flatten().cpu()
    order = torch.argsort(flat, stable=True)
    assert torch.equal(plan.place.cpu().long()[order], torch.arange(len(flat)))
    assert torch.equal(plan.x, x[order // per_token])
    expected, start = [], 0
    for expert in range(count):
        end = start + int((flat == expert).sum())
        expected += [(expert, first, end) for first in range(start, end, x_rows)]
        start = end
    table = plan.table.cpu()
    blocks = (len(table) - 1) // 3
    entries = table[1:].view(3, blocks)[:, : int(table[0])].T.tolist()
    assert [tuple(entry) for entry in entries] == expected

    shares = torch.rand(tokens, per_token, generator=generator).to(triton_device)
    rows = torch.randn(len(flat), 40, generator=generator).to(triton_device)
    by_token = rows[plan.place.long()].view(tokens, per_token, 40)
    torch.testing.assert_close(sum_of_experts(rows, plan.place, shares), (by_token * shares[:, :, None]).sum(1))
