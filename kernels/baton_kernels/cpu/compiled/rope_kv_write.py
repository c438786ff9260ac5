"""RoPE, QK-norm and the write of K and V into the pool, compiled for one shape of heads: one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from baton_kernels.cpu.compiled.attention import HeadShape, suits_attention
from baton_kernels.cpu.compiled.emitter import F32, I64, LANES, VECTOR, Kernel, Pointer, Value
from baton_kernels.cpu.compiled.machine_code import Function, compile_kernels


def rope_kv_write_compiled(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slot_mapping: Tensor,
    kv_pool: Tensor,
    layer: int,
    num_q_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    eps: float,
) -> Tensor | None:
    """Arguments as in `rope_kv_write`; Q is rotated in place. None, nothing touched, where torch's path serves."""
    if not suits_attention(kv_pool) or qkv.dtype != kv_pool.dtype:
        return None
    _, _, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    function = _compiled(HeadShape(num_q_heads, kv_heads, head_dim, block_tokens), q_norm is not None)
    norms = (0, 0) if q_norm is None or k_norm is None else (q_norm.data_ptr(), k_norm.data_ptr())
    function(
        qkv.data_ptr(),
        qkv.shape[0],
        positions.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        slot_mapping.data_ptr(),
        kv_pool.data_ptr() + layer * 2 * kv_heads * block_tokens * head_dim * 4,
        kv_pool.stride(0),
        *norms,
        eps,
    )
    return qkv.view(qkv.shape[0], -1, head_dim)[:, :num_q_heads]


@lru_cache(maxsize=8)
def _compiled(shape: HeadShape, with_norm: bool) -> Function:
    (function,) = compile_kernels([_kernel(shape, with_norm)])
    return function


def _kernel(shape: HeadShape, with_norm: bool) -> Kernel:
    q_heads, kv_heads, dim, block_tokens = shape.q_heads, shape.kv_heads, shape.head_dim, shape.block_tokens
    k = Kernel(
        "rope_kv_write", qkv="*float", rows=I64, positions="*i64", cos="*float", sin="*float", places="*i64",
        pool="*float", block_stride=I64, q_norm="*float", k_norm="*float", eps=F32,
    )  # fmt: skip
    with k.loop(0, k["rows"]) as row:
        query = k.pointer("qkv") + row * ((q_heads + 2 * kv_heads) * dim)
        angle = (k.pointer("positions") + row).load() * dim
        angles = k.pointer("cos") + angle, k.pointer("sin") + angle
        with k.loop(0, q_heads) as head:
            at = query + head * dim
            _rotate(k, at, at, angles, k.pointer("q_norm") if with_norm else None, dim)
        place = (k.pointer("places") + row).load()
        with k.when(place >= 0):
            slot = k.pointer("pool") + place // block_tokens * k["block_stride"] + place % block_tokens * dim
            with k.loop(0, kv_heads) as head:
                key, stored = query + (head + q_heads) * dim, slot + head * (block_tokens * dim)
                _rotate(k, key, stored, angles, k.pointer("k_norm") if with_norm else None, dim)
                for d in range(0, dim, LANES):
                    (stored + (kv_heads * block_tokens * dim + d)).store((key + (kv_heads * dim + d)).load(LANES))
    return k


def _rotate(
    k: Kernel, source: Pointer, target: Pointer, angles: tuple[Pointer, Pointer], norm: Pointer | None, dim: int
) -> None:
    """One head, normalised before when `norm` is given."""
    load = _normed(k, source, norm, dim) if norm is not None else lambda d: (source + d).load(LANES)
    for d in range(0, dim // 2, LANES):
        first, second = load(d), load(d + dim // 2)
        cos, sin = ((angle + d).load(LANES) for angle in angles)
        (target + d).store(first * cos - second * sin)
        (target + (d + dim // 2)).store(second * cos + first * sin)


def _normed(k: Kernel, source: Pointer, weight: Pointer, dim: int) -> Callable[[int], Value]:
    squares = k.constant(0.0, VECTOR)
    for d in range(0, dim, LANES):
        x = (source + d).load(LANES)
        squares = k.fma(x, x, squares)
    factor = k.splat(k.constant(1.0, F32) / k.root(k.total(squares) * (1 / dim) + k["eps"]))
    return lambda d: (source + d).load(LANES) * factor * (weight + d).load(LANES)
