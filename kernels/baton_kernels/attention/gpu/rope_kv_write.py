"""RoPE + QK-norm + KV write in Triton: one program per token and group of heads; Q, K and V heads go through the
same code.

Heads are numbered as in the packed projection: Q, then K, then V. A V head has cos 1 and sin 0 and no norm.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.dense.rounded_rows import ScaledProduct, scales_apart
from baton_kernels.launching.dependent_launch import after_previous, chain

HEADS_A_PROGRAM = 8
MANY_TOKENS, HEADS_OF_MANY = 1_024, 32
"""From MANY_TOKENS on larger programs read and write at the memory's rate, as the GPU is full of them anyway."""


@triton.jit
def _rope_kv_write_kernel(
    qkv_ptr, row_scale_ptr, feature_scale_ptr, positions_ptr, cos_ptr, sin_ptr, slots_ptr, q_norm_ptr, k_norm_ptr,
    scales_ptr, q_ptr, pool_ptr,
    block_stride, layer_offset, eps,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_HALF: tl.constexpr, NORM: tl.constexpr, UNSCALED: tl.constexpr,
    SCALED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = D // 2
    HEADS: tl.constexpr = Q_HEADS + 2 * KV_HEADS
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)  # [BLOCK_H]
    lane = tl.arange(0, BLOCK_HALF)
    is_lane = lane < HALF
    inside = (head < HEADS)[:, None] & is_lane[None, :]
    is_value = (head >= Q_HEADS + KV_HEADS)[:, None]

    # Nothing writes weights: they may be read before the wait.
    if UNSCALED:
        feature = feature_scale_ptr + head[:, None] * D + lane[None, :]
        first_scale = tl.load(feature, mask=inside, other=0.0)
        second_scale = tl.load(feature + HALF, mask=inside, other=0.0)
    if NORM:
        is_q = (head < Q_HEADS)[:, None]
        q_first = tl.load(q_norm_ptr + lane, mask=is_lane, other=0.0).to(tl.float32)  # [HALF], as the next three
        q_second = tl.load(q_norm_ptr + HALF + lane, mask=is_lane, other=0.0).to(tl.float32)
        k_first = tl.load(k_norm_ptr + lane, mask=is_lane, other=0.0).to(tl.float32)
        k_second = tl.load(k_norm_ptr + HALF + lane, mask=is_lane, other=0.0).to(tl.float32)
        weight_first = tl.where(is_q, q_first[None, :], k_first[None, :])
        weight_second = tl.where(is_q, q_second[None, :], k_second[None, :])
    after_previous(CHAINED)

    angle = tl.load(positions_ptr + token).to(tl.int64) * D + lane
    slot = tl.load(slots_ptr + token).to(tl.int64)
    row = qkv_ptr + (token * HEADS + head)[:, None] * D + lane[None, :]
    first = tl.load(row, mask=inside, other=0.0).to(tl.float32)  # [BLOCK_H, HALF]
    second = tl.load(row + HALF, mask=inside, other=0.0).to(tl.float32)  # [BLOCK_H, HALF]
    cos = tl.load(cos_ptr + angle, mask=is_lane, other=0.0).to(tl.float32)[None, :]  # [1, HALF]
    sin = tl.load(sin_ptr + angle, mask=is_lane, other=0.0).to(tl.float32)[None, :]  # [1, HALF]
    if UNSCALED:
        row_scale = tl.load(row_scale_ptr + token)
        dtype: tl.constexpr = qkv_ptr.dtype.element_ty
        first *= row_scale * first_scale
        second *= row_scale * second_scale
        first = first.to(dtype).to(tl.float32)
        second = second.to(dtype).to(tl.float32)
    if NORM:
        mean = (tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / D
        scale = tl.where(is_value, 1.0, (1.0 / tl.sqrt(mean + eps))[:, None])
        first *= scale * tl.where(is_value, 1.0, weight_first)
        second *= scale * tl.where(is_value, 1.0, weight_second)

    cos = tl.where(is_value, 1.0, cos)
    sin = tl.where(is_value, 0.0, sin)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin

    out = q_ptr + (token * Q_HEADS + head)[:, None] * D + lane[None, :]
    is_query = inside & (head < Q_HEADS)[:, None]
    tl.store(out, turned_first.to(q_ptr.dtype.element_ty), mask=is_query)
    tl.store(out + HALF, turned_second.to(q_ptr.dtype.element_ty), mask=is_query)

    is_written = inside & (head >= Q_HEADS)[:, None] & (slot >= 0)
    if SCALED:
        # Heads of K, then of V, as the scales of the layer lie.
        scale = tl.load(scales_ptr + head - Q_HEADS, mask=(head >= Q_HEADS) & (head < HEADS), other=1.0)[:, None]
        turned_first = tl.clamp(turned_first / scale, -448.0, 448.0)
        turned_second = tl.clamp(turned_second / scale, -448.0, 448.0)
    place = (slot // BLOCK_TOKENS) * block_stride + layer_offset + (slot % BLOCK_TOKENS) * D
    target = pool_ptr + place + (head - Q_HEADS)[:, None] * (BLOCK_TOKENS * D) + lane[None, :]
    tl.store(target, turned_first.to(pool_ptr.dtype.element_ty), mask=is_written)
    tl.store(target + HALF, turned_second.to(pool_ptr.dtype.element_ty), mask=is_written)


def rope_kv_write_triton(
    qkv: Tensor | ScaledProduct, kv: KvLayer, rows: PlacedRows, num_q_heads: int, norms: HeadNorms | None = None
) -> Tensor:
    """As `baton_kernels.attention.rope_kv_write.rope_kv_write`, leaving qkv unchanged."""
    values, row_scales, scales = scales_apart(qkv)
    kv_pool, cos = kv.pool, rows.cos
    _, _, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    q = torch.empty(values.shape[0], num_q_heads, head_dim, dtype=values.dtype, device=values.device)
    if values.shape[0] == 0:
        return q
    launch = chain(values)
    heads = num_q_heads + 2 * kv_heads
    most_heads = HEADS_OF_MANY if values.shape[0] >= MANY_TOKENS else HEADS_A_PROGRAM
    block_heads = min(most_heads, triton.next_power_of_2(heads))
    _rope_kv_write_kernel[(values.shape[0], triton.cdiv(heads, block_heads))](
        values, row_scales, scales, rows.positions, cos, rows.sin, rows.slot_mapping,
        cos if norms is None else norms.q, cos if norms is None else norms.k,
        cos if kv.scales is None else kv.scales[kv.layer], q, kv_pool,
        kv_pool.stride(0), kv.layer * kv_pool.stride(1), 0.0 if norms is None else norms.eps,
        num_q_heads, kv_heads, head_dim, block_tokens,
        block_heads, triton.next_power_of_2(head_dim // 2), norms is not None, scales is not None,
        kv.scales is not None, bool(launch),
        num_warps=2, **launch,
    )  # fmt: skip
    return q
