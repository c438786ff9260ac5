"""Sampling on the CPU: each stage touches only the rows that need it, and nothing of a vocabulary is sorted unless
it must be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from baton_kernels.gumbel import noise_keys, noise_of_keys

NUCLEI = (64, 1024)
"""Tokens looked at for top-p before all are: most nuclei are small, and the 64 greatest of 32k logits cost a
hundredth of a sort."""

DRAW_WORDS = 64 * 1024
"""Noise words made at a time: twenty passes over 256 KiB stay in the core's cache."""


def greatest(logits: Tensor) -> Tensor:
    """Argmax of each row, first of equals: [n, V] → [n] int64. numpy's is vectorised: 10 × faster than torch's."""
    return torch.from_numpy(logits.numpy().argmax(-1))


def on_rows(logits: Tensor, rows: list[int], change: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
    """`logits` with change(logits of `rows`, their numbers) in those rows; numbers None when it is every row, in
    order.

    Gives back `logits` itself when no row is named; otherwise a new tensor."""
    if not rows:
        return logits
    if len(rows) == logits.shape[0]:
        return change(logits, None)
    numbers = torch.tensor(rows)
    return logits.index_copy(0, numbers, change(logits.index_select(0, numbers), numbers))


def select(values: Tensor, rows: Tensor | None) -> Tensor:
    """The named rows of a per-row tensor."""
    return values if rows is None else values.index_select(0, rows)


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """`mask_top_k_top_p_min_p` for rows that all draw (temperature > 0) and have something on."""
    scaled = logits / temperature[:, None]
    # The greatest token is always kept: log(min_p) of a min_p above 1 must not lift the threshold over it.
    threshold = scaled.amax(-1) + torch.log(min_p).clamp_(max=0.0)
    ordered_rows = ((top_k > 0) | (top_p < 1)).nonzero()[:, 0]
    if ordered_rows.numel():
        rows = None if ordered_rows.numel() == logits.shape[0] else ordered_rows
        found = _top_k_top_p_threshold(select(scaled, rows), select(top_k, rows), select(top_p, rows))
        merged = torch.maximum(select(threshold, rows), found)
        threshold = merged if rows is None else threshold.index_copy(0, rows, merged)
    return torch.where(scaled >= threshold[:, None], logits, float("-inf"))


def _top_k_top_p_threshold(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The smallest scaled logit kept, per row. Looks at the few greatest first and further only where that was too
    short."""
    threshold = torch.empty(scaled.shape[0])
    rows, vocab = torch.arange(scaled.shape[0]), scaled.shape[1]
    for length in (*NUCLEI, vocab):
        seen = min(vocab, max(length, int(top_k.max())))
        ordered = scaled.topk(seen, dim=-1).values
        found, is_settled = _threshold_within(scaled, ordered, top_k, top_p)
        threshold.index_copy_(0, rows, found)
        unsettled = (~is_settled).nonzero()[:, 0]
        if seen == vocab or not unsettled.numel():
            break
        rows, scaled, top_k, top_p = (select(values, unsettled) for values in (rows, scaled, top_k, top_p))
    return threshold


def _threshold_within(scaled: Tensor, ordered: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Threshold from each row's `ordered` [n, seen] greatest, descending, and whether it is final (more would not
    change it).

    Masses are added up in float64: float32 sums over thousands of tokens would move the border by several tokens."""
    seen = ordered.shape[1]
    count = torch.where(top_k > 0, top_k, seen).clamp_(max=seen).long()
    kth = torch.where(top_k > 0, ordered.gather(1, count[:, None] - 1)[:, 0], float("-inf"))
    survivors = scaled.masked_fill(scaled < kth[:, None], float("-inf"))
    total = torch.sub(survivors, ordered[:, :1], out=survivors).exp_().sum(-1, keepdim=True, dtype=torch.float64)
    up_to = (ordered - ordered[:, :1]).exp_().cumsum(-1, dtype=torch.float64)
    # Tokens of equal logits share the mass above the first of them.
    run_start = torch.searchsorted(-ordered, -ordered, side="left")
    above = torch.where(run_start > 0, up_to.gather(1, (run_start - 1).clamp_(min=0)), 0.0)
    is_kept = ((above < top_p[:, None] * total) | (top_p >= 1)[:, None]) & (ordered >= kth[:, None])
    is_kept[:, 0] = True
    last = is_kept.sum(-1) - 1
    is_settled = (last < seen - 1) | ((top_k > 0) & (top_k <= seen))
    return ordered.gather(1, last[:, None])[:, 0], is_settled


def draw(logits: Tensor, temperature: Tensor, seed: Tensor, choice: Tensor, index: Tensor) -> Tensor:
    """argmax(logits / temperature + noise) of rows that all draw: [n, V] → [n] int64, a few rows at a time."""
    n, vocab = logits.shape
    k0, k1 = noise_keys(seed, choice, index)
    together = max(1, DRAW_WORDS // vocab)
    ids = []
    for at in range(0, n, together):
        rows = slice(at, at + together)
        noise = noise_of_keys(k0[rows], k1[rows], vocab)
        ids.append(greatest(noise.add_(logits[rows] / temperature[rows, None])))
    return torch.cat(ids)
