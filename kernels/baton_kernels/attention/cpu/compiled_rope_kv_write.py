"""RoPE, QK-norm and the write of K and V into the pool, compiled for one shape of heads: one pass over the rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from baton_kernels.attention.attention_inputs import HeadNorms, KvLayer, PlacedRows
from baton_kernels.attention.cpu.compiled_attention import HeadShape, suits_attention
from baton_kernels.compiled.emitter import F32, I64, LANES, VECTOR, Kernel, Pointer, Value
from baton_kernels.compiled.machine_code import compile_kernels


class CompiledRopeKvWrite:
    """The write for one shape of heads."""

    def __init__(self, shape: HeadShape, with_norm: bool) -> None:
        self._shape = shape
        (self._function,) = compile_kernels([_kernel(shape, with_norm)])

    def __call__(self, qkv: Tensor, kv: KvLayer, rows: PlacedRows, norms: HeadNorms | None) -> Tensor:
        """Arguments as in `rope_kv_write`; Q is rotated in place."""
        shape = self._shape
        layer_bytes = 2 * shape.kv_heads * shape.block_tokens * shape.head_dim * 4
        self._function(
            qkv.data_ptr(),
            qkv.shape[0],
            rows.positions.data_ptr(),
            rows.cos.data_ptr(),
            rows.sin.data_ptr(),
            rows.slot_mapping.data_ptr(),
            kv.pool.data_ptr() + kv.layer * layer_bytes,
            kv.pool.stride(0),
            *((0, 0, 0.0) if norms is None else (norms.q.data_ptr(), norms.k.data_ptr(), norms.eps)),
        )
        return qkv.view(qkv.shape[0], -1, shape.head_dim)[:, : shape.q_heads]


def compiled_rope_kv_write(
    qkv: Tensor, kv_pool: Tensor, num_q_heads: int, with_norm: bool
) -> CompiledRopeKvWrite | None:
    """The write for these heads if it suits the pool."""
    if qkv.dtype != kv_pool.dtype or not suits_attention(kv_pool):
        return None
    _, _, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    return _compiled(HeadShape(num_q_heads, kv_heads, head_dim, block_tokens), with_norm)


@lru_cache(maxsize=8)
def _compiled(shape: HeadShape, with_norm: bool) -> CompiledRopeKvWrite:
    return CompiledRopeKvWrite(shape, with_norm)


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
