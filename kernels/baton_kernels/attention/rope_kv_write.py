"""Rotary embedding of Q and K, optional QK-norm before it (Qwen3), and the write of K and V into the paged pool.

    n(x)    = x / sqrt(mean(x²) + eps) * norm_weight                 per head, only when the weights are given
    rope(x) = x * cos[p] + rotate_half(x) * sin[p],  rotate_half(x) = (-x[D/2:], x[:D/2]) pool[slot // block_tokens,
    layer, 0 or 1, head, slot % block_tokens] = rope(n(k)) or v        slot = slot_mapping[t]

A slot of -1 writes nowhere (padding of a static grid). Computed in float32, rounded once to the dtype of qkv.
cos and sin repeat their first half in the second.

Bytes: reads T·(Hq+2·Hkv)·D and 2·T·D of cos and sin, writes T·Hq·D (Q) and 2·T·Hkv·D (pool).
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.attention.cpu.compiled_rope_kv_write import compiled_rope_kv_write
from baton_kernels.attention.cpu.rope_kv_write import rope_kv_write_cpu
from baton_kernels.dense.rounded_rows import ScaledProduct
from baton_kernels.kv.kv_scales import as_bytes, to_pool


def rope_kv_write_reference(
    qkv: Tensor, kv: KvLayer, rows: PlacedRows, num_q_heads: int, norms: HeadNorms | None = None
) -> Tensor:
    """The formula above, written out. Shapes as in `rope_kv_write`."""
    _, _, _, kv_heads, block_tokens, head_dim = kv.pool.shape
    heads = qkv.view(qkv.shape[0], num_q_heads + 2 * kv_heads, head_dim).float()
    q, k, v = heads[:, :num_q_heads], heads[:, num_q_heads:-kv_heads], heads[:, -kv_heads:]
    if norms is not None:
        q, k = _head_norm(q, norms.q, norms.eps), _head_norm(k, norms.k, norms.eps)
    cos, sin = (table[rows.positions][:, None].float() for table in (rows.cos, rows.sin))
    q, k = (x * cos + _rotate_half(x) * sin for x in (q, k))
    written = rows.slot_mapping >= 0
    slots = rows.slot_mapping[written]
    block, offset = slots // block_tokens, slots % block_tokens
    for side, values in enumerate((k[written], v[written])):
        if kv.scales is None:
            stored = values.to(kv.pool.dtype)
        else:
            stored = to_pool(values, kv.scales[kv.layer, side][:, None], kv.pool.dtype)
        as_bytes(kv.pool)[block, kv.layer, side, :, offset] = as_bytes(stored)
    return q.to(qkv.dtype)


def _head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rope_kv_write(
    qkv: Tensor | ScaledProduct, kv: KvLayer, rows: PlacedRows, num_q_heads: int, norms: HeadNorms | None = None
) -> Tensor:
    """Rotate Q and K, write K and V: qkv [T, (Hq + 2·Hkv)·D] contiguous → q [T, Hq, D].

    `qkv` belongs to the op afterwards: it may be overwritten, and the result may be a view of it.
    """
    if kv.pool.is_cuda:
        from baton_kernels.attention.gpu.rope_kv_write import rope_kv_write_triton

        return rope_kv_write_triton(qkv, kv, rows, num_q_heads, norms)
    qkv = qkv.product() if isinstance(qkv, ScaledProduct) else qkv
    if (compiled := compiled_rope_kv_write(qkv, kv.pool, num_q_heads, norms is not None)) is not None:
        return compiled(qkv, kv, rows, norms)
    return rope_kv_write_cpu(qkv, kv, rows, num_q_heads, norms)
