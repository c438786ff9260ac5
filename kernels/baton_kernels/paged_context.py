"""Reading one sequence's K and V out of the paged pool: what the attention references share.

The pool is `[num_blocks, layers, 2 (K, V), kv_heads, block_tokens, head_dim]`; token t of a sequence lies in block
`block_table[t // block_tokens]`, slot `t % block_tokens`.
"""

from __future__ import annotations

from torch import Tensor

from baton_kernels.kv_scales import as_bytes


def read_context(
    kv_pool: Tensor, layer: int, block_table: Tensor, context_len: int, kv_scales: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """K and V of the first context_len tokens, each a copy [kv_heads, context_len, head_dim]. block_table [>=
    blocks used]."""
    block_tokens = kv_pool.shape[4]
    used = -(-context_len // block_tokens)
    blocks = as_bytes(kv_pool)[block_table[:used].long(), layer].view(
        kv_pool.dtype
    )  # [used, 2, kv_heads, block_tokens, head_dim]
    if kv_scales is not None:
        blocks = blocks.float() * kv_scales[layer][None, :, :, None, None]
    key_value = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context_len]
    return key_value[0], key_value[1]
