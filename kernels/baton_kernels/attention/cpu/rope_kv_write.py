"""RoPE and KV write on the CPU in few ops: all Q and K heads are rotated at once in place, K and V written by one
index_copy_.

The gathered cos and sin rows and the pool rows written are the same for every layer and made once a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.dense.rms_norm import inverse_rms


@dataclass(frozen=True, slots=True)
class RopeIndex:
    """Rotations and places that all layers of one step share."""

    cos: Tensor
    """[T, 1, D] float32."""
    signed_sin: Tensor
    """[T, 1, D] float32: -sin in the first half, so that the rotation is x · cos + swap_halves(x) · signed_sin."""
    rows: Tensor
    """Pool rows (of head_dim elements, layer 0) of the K heads, then V heads, of each written token: [written · 2 ·
    Hkv] int64."""
    written: Tensor | None
    """Tokens that have a slot, [written] int64; None when all have."""
    reach: int
    """Pool rows from a layer's first K row to its last V row."""


def rope_index(kv_pool: Tensor, rows: PlacedRows) -> RopeIndex:
    """Index of one step for all layers: arguments as in `rope_kv_write`."""
    blocks, layers, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    layer_rows = 2 * kv_heads * block_tokens
    block_rows = layers * layer_rows
    signed_sin = rows.sin.index_select(0, rows.positions).float()
    signed_sin[:, : head_dim // 2].neg_()
    written, slot_mapping = None, rows.slot_mapping
    if slot_mapping.numel() and int(slot_mapping.min()) < 0:
        written = (slot_mapping >= 0).nonzero()[:, 0]
        slot_mapping = slot_mapping.index_select(0, written)
    # block · block_rows + slot, from block · block_tokens + slot.
    first = torch.add(slot_mapping, slot_mapping // block_tokens, alpha=block_rows - block_tokens)
    pool_rows = (first[:, None] + torch.arange(0, layer_rows, block_tokens)).view(-1)
    cos = rows.cos.index_select(0, rows.positions).float()
    return RopeIndex(cos[:, None], signed_sin[:, None], pool_rows, written, (blocks - 1) * block_rows + layer_rows)


def rope_kv_write_cpu(
    qkv: Tensor, kv: KvLayer, rows: PlacedRows, num_q_heads: int, norms: HeadNorms | None = None
) -> Tensor:
    """Arguments as in `rope_kv_write`; float32 qkv is rotated in place and the result a view of it."""
    index = rows.memo.once("rope", lambda: rope_index(kv.pool, rows))
    _, _, _, kv_heads, block_tokens, head_dim = kv.pool.shape
    heads = qkv.view(qkv.shape[0], num_q_heads + 2 * kv_heads, head_dim)
    rotated = heads[:, : num_q_heads + kv_heads].float()
    if norms is not None:
        rotated.mul_(inverse_rms(rotated, norms.eps))
        rotated[:, :num_q_heads].mul_(norms.q)
        rotated[:, num_q_heads:].mul_(norms.k)
    swapped = rotated.roll(head_dim // 2, -1)
    rotated.mul_(index.cos).addcmul_(swapped, index.signed_sin)
    if qkv.dtype != torch.float32:
        heads[:, : num_q_heads + kv_heads] = rotated
    key_value = heads[:, num_q_heads:]
    if index.written is not None:
        key_value = key_value.index_select(0, index.written)
    layer_rows = 2 * kv_heads * block_tokens
    target = kv.pool.view(-1, head_dim).narrow(0, kv.layer * layer_rows, index.reach)
    target.index_copy_(0, index.rows, key_value.reshape(-1, head_dim).to(kv.pool.dtype))
    return heads[:, :num_q_heads]
