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

from baton_kernels.cpu.compiled.rope_kv_write import rope_kv_write_compiled
from baton_kernels.cpu.rope_kv_write import RopeIndex, rope_index, rope_kv_write_cpu
from baton_kernels.kv_scales import as_bytes, check_scales, to_pool

__all__ = ["RopeIndex", "rope_index", "rope_kv_write", "rope_kv_write_reference"]


def rope_kv_write_reference(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    kv_pool: Tensor,
    layer: int,
    num_q_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """The formula above, written out. Shapes as in `rope_kv_write`."""
    _, _, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    heads = qkv.view(qkv.shape[0], num_q_heads + 2 * kv_heads, head_dim).float()
    q, k, v = heads[:, :num_q_heads], heads[:, num_q_heads:-kv_heads], heads[:, -kv_heads:]
    if q_norm is not None and k_norm is not None:
        q, k = _head_norm(q, q_norm, eps), _head_norm(k, k_norm, eps)
    cos_rows, sin_rows = cos[positions][:, None].float(), sin[positions][:, None].float()
    q, k = (x * cos_rows + _rotate_half(x) * sin_rows for x in (q, k))
    written = slot_mapping >= 0
    slots = slot_mapping[written]
    block, offset = slots // block_tokens, slots % block_tokens
    for side, values in enumerate((k[written], v[written])):
        if kv_scales is None:
            stored = values.to(kv_pool.dtype)
        else:
            stored = to_pool(values, kv_scales[layer, side][:, None], kv_pool.dtype)
        as_bytes(kv_pool)[block, layer, side, :, offset] = as_bytes(stored)
    return q.to(qkv.dtype)


def _head_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def _rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    kv_pool: Tensor,
    layer: int,
    num_q_heads: int,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    index: RopeIndex | None = None,
    kv_scales: Tensor | None = None,
) -> Tensor:
    """Rotate Q and K, write K and V: qkv [T, (Hq + 2·Hkv)·D] contiguous → q [T, Hq, D].

    positions [T] int64; cos, sin [max_position, D]; slot_mapping [T] int64: block · block_tokens + slot, -1 writes
    nowhere; kv_pool [blocks, layers, 2, Hkv, block_tokens, D]; q_norm, k_norm [D], together or not at all. `qkv`
    belongs to the op afterwards: it may be overwritten, and the result may be a view of it. On the CPU an `index`
    made by `rope_index` once a step saves its part of every layer; elsewhere it is ignored. A float8 pool comes with
    its kv_scales (`kv_scales.py`).
    """
    check_scales(kv_pool, kv_scales)
    if (q_norm is None) != (k_norm is None):
        raise ValueError("q_norm and k_norm are given together or not at all")
    if qkv.is_cuda:
        from baton_kernels.gpu.rope_kv_write import rope_kv_write_triton

        return rope_kv_write_triton(
            qkv, positions, cos, sin, slot_mapping, kv_pool, layer, num_q_heads, q_norm, k_norm, eps, kv_scales
        )
    if index is None:
        q = rope_kv_write_compiled(
            qkv, positions, cos, sin, slot_mapping, kv_pool, layer, num_q_heads, q_norm, k_norm, eps
        )
        if q is not None:
            return q
    index = index or rope_index(positions, cos, sin, slot_mapping, kv_pool)
    return rope_kv_write_cpu(qkv, kv_pool, layer, num_q_heads, q_norm, k_norm, eps, index)
