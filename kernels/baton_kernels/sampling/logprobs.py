"""Log-probabilities of drawn tokens and of the most likely ones, from the raw logits (before penalties and
temperature).

    logprob[n, v] = l[n, v] - log Σ_u exp(l[n, u])

Bytes: reads N·V logits once for the sum; on the GPU once more for each of the k best (k ≤ 20).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Logprobs of N rows: `chosen` [N] float32; `top_ids` [N, k] int64 and `top` [N, k] float32, best first."""

    chosen: Tensor
    top_ids: Tensor
    top: Tensor


def logprobs_reference(logits: Tensor, ids: Tensor, k: int) -> Logprobs:
    """The formula above, by a full sort. Shapes as in `logprobs`."""
    values = logits.float().log_softmax(-1)
    top, top_ids = values.sort(dim=-1, descending=True, stable=True)
    return Logprobs(values.gather(1, ids[:, None]).squeeze(1), top_ids[:, :k], top[:, :k])


def logprobs(logits: Tensor, ids: Tensor, k: int) -> Logprobs:
    """Logprobs of logits [N, V] raw, ids [N] int64 drawn and the k ≥ 0 best (at most V). Equal logits come in any
    order."""
    if logits.is_cuda:
        from baton_kernels.sampling.gpu.logprobs import logprobs_triton

        return Logprobs(*logprobs_triton(logits, ids, k))
    values = logits.float()
    total = values.logsumexp(-1)
    top, top_ids = torch.topk(values, min(k, logits.shape[1]), dim=-1)
    return Logprobs(values.gather(1, ids[:, None]).squeeze(1) - total, top_ids, top - total[:, None])
