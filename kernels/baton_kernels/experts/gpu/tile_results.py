"""The end of a tile of expert products, in Gluon: gates of float32 sums, and layouts in which a thread stores 16 bytes.

The matrix unit leaves two neighbours of a row in a thread, or, of a transposed product, one. Stored from there a row
block takes several thousand cycles in which nothing is multiplied. Moved to other threads of the same warp first, it
takes a fraction of that.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def rounded(total):
    """Round float32 sums to bfloat16 and back, two by two."""
    return gl.inline_asm_elementwise(
        "{ .reg .b32 pair; cvt.rn.bf16x2.f32 pair, $3, $2; shl.b32 $0, pair, 16; and.b32 $1, pair, 0xFFFF0000; }",
        "=&f,=f,f,f", [total], gl.float32, is_pure=True, pack=2,
    )  # fmt: skip


@gluon.jit
def sigmoid(x):
    """Compute 1 / (1 + exp(-x)) within some units of the last place. Powers of two stop at 115, far below 1e-30."""
    return gl.inline_asm_elementwise(
        """{
            mul.f32 $0, $1, 0fBFB8AA3B;
            min.f32 $0, $0, 0f42E60000;
            ex2.approx.ftz.f32 $0, $0;
            add.f32 $0, $0, 0f3F800000;
            rcp.approx.ftz.f32 $0, $0;
        }""", "=&f,f", [x], gl.float32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def clamped_gate(gate, up, limit, alpha):
    """Apply gpt-oss' gate to rounded sums."""
    gate = gl.minimum(gate, limit)
    up = gl.minimum(gl.maximum(up, -limit), limit)
    return gate * sigmoid(alpha * gate) * (up + 1.0)


@triton.constexpr_function
def lines_of_features(features, rows):
    """Layout of [features, rows], features neighbours in memory, of warps with 16 features each."""
    bits = [1 << bit for bit in range(rows.bit_length() - 1)]
    warps = [[16 << bit, 0] for bit in range((features // 16).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[1, 0], [2, 0], [4, 0]] + [[0, bit] for bit in bits[4:]], [[8, 0]] + [[0, bit] for bit in bits[:4]], warps,
        [], [features, rows],
    )  # fmt: skip


@triton.constexpr_function
def lines_of_columns(rows, columns):
    """Layout of [rows, columns], columns neighbours in memory, of warps with 16 rows each."""
    further = [[0, 1 << bit] for bit in range(5, columns.bit_length() - 1)]
    warps = [[16 << bit, 0] for bit in range((rows // 16).bit_length() - 1)]
    return gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0], *further], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], warps, [],
        [rows, columns],
    )  # fmt: skip
