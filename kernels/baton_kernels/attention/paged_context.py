"""Reading one sequence's K and V out of the paged pool: and softmax over it: what the attention references share.

The pool is `[num_blocks, layers, 2 (K, V), kv_heads, block_tokens, head_dim]`; token t of a sequence lies in block
`block_table[t // block_tokens]`, slot `t % block_tokens`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import KvLayer
from baton_kernels.kv.kv_scales import as_bytes


def read_context(kv: KvLayer, block_table: Tensor, context_len: int) -> tuple[Tensor, Tensor]:
    """K and V of the first context_len tokens, each a copy [kv_heads, context_len, head_dim]. block_table [>=
    blocks used]."""
    used = -(-context_len // kv.pool.shape[4])
    blocks = as_bytes(kv.pool)[block_table[:used].long(), kv.layer].view(kv.pool.dtype)  # [used, 2, heads, slots, dim]
    if kv.scales is not None:
        blocks = blocks.float() * kv.scales[kv.layer][None, :, :, None, None]
    key_value = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len]
    return key_value[0], key_value[1]


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """softmax over the last dimension of scores [Hq, …, keys], one weight exp(sinks[h]) more in each sum."""
    if sinks is None:
        return scores.softmax(-1)
    extra = sinks.float().view(-1, *[1] * (scores.dim() - 1)).expand(*scores.shape[:-1], 1)
    return torch.cat((scores, extra), -1).softmax(-1)[..., :-1]
