"""A router that chooses experts by corrected scores: sigmoids or a softmax of logits, plus a bias for each expert,
perhaps within the best groups of experts. Shares in the sum are made from the scores alone (DeepSeek-V3, arXiv
2412.19437, section 2.1.2).

Plain operations of torch on every device. Bytes: E·H weights; T·E scores are read some ten times.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.experts.expert_inputs import Correction, Routing


def route_corrected(
    x: Tensor, weight: Tensor, bias: Tensor | None, per_token: int, normalised: bool, correction: Correction
) -> Routing:
    """Route x [T, H] by weight [E, H] and bias [E], both float32, computing in float32. Of equals the lowest number.
    Without a bias the logits choose: large ones have equal sigmoids."""
    logits = functional.linear(x.float(), weight)
    scores = logits.softmax(-1) if correction.is_softmax else logits.sigmoid()
    corrected = logits if bias is None else scores + bias
    order = _within_groups(corrected, correction).sort(dim=-1, descending=True, stable=True).indices
    experts = order[:, :per_token].contiguous()
    shares = scores.gather(1, experts)
    if normalised:
        shares = shares / shares.sum(-1, keepdim=True).clamp(min=correction.least_sum)
    return Routing(shares * correction.scale, experts)


def _within_groups(scores: Tensor, correction: Correction) -> Tensor:
    """The scores, -inf outside a token's best groups. A group is as good as its two best experts together."""
    if correction.groups == 1:
        return scores
    grouped = scores.view(-1, correction.groups, scores.shape[1] // correction.groups)
    best = grouped.topk(2, dim=-1).values.sum(-1).sort(dim=-1, descending=True, stable=True).indices
    is_taken = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best[:, : correction.groups_per_token], True)
    return grouped.masked_fill(~is_taken[..., None], -torch.inf).flatten(1)
