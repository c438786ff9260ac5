"""Weights of 8 and 4 bits widened to bfloat16 in registers, in Gluon with inline PTX, as operands of a warpgroup.

A thread loads 4 neighbouring bytes of a stored line and widens them two by two (`quantised_weight` and `mxfp4_weight`
describe the stored order). All of it is exact; only `widen_scaled_int4` rounds, once, as it multiplies by the scale.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_E4M3 = gl.constexpr("""{
    .reg .b32 even, odd, high, unit;
    mov.b32 unit, 0x7B807B80;
    shl.b32 even, $2, 4;
    shl.b32 high, $2, 8;
    shr.b32 odd, $2, 4;
    and.b32 even, even, 0x07F007F0;
    and.b32 odd, odd, 0x07F007F0;
    lop3.b32 even, high, 0x80008000, even, 0xEA;
    lop3.b32 odd, $2, 0x80008000, odd, 0xEA;
    mul.rn.bf16x2 $0, even, unit;
    mul.rn.bf16x2 $1, odd, unit;
}""")
"""Sign, exponent and mantissa of e4m3 are adjacent, as in bfloat16. A factor of 2¹²⁰ corrects the exponent, also that
of subnormals."""

_INT8 = gl.constexpr("""{
    .reg .b32 even, odd, even_zero, odd_zero, high;
    shr.b32 high, $2, 8;
    lop3.b32 even, $2, 0x007F007F, 0x43004300, 0xEA;
    lop3.b32 odd, high, 0x007F007F, 0x43004300, 0xEA;
    lop3.b32 even_zero, $2, 0x00800080, 0x43004300, 0xEA;
    lop3.b32 odd_zero, high, 0x00800080, 0x43004300, 0xEA;
    sub.rn.bf16x2 $0, even, even_zero;
    sub.rn.bf16x2 $1, odd, odd_zero;
}""")
"""Seven bits in the mantissa of bfloat16's 128 make 128 + n, of which 128 is subtracted. The eighth bit, worth -128,
makes that 256."""

_NIBBLES = """
    .reg .b32 a, b, c;
    shr.b32 a, $4, 8;
    shr.b32 b, $4, 4;
    shr.b32 c, $4, 12;
    lop3.b32 $0, $4, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 $1, a, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 $2, b, 0x000F000F, 0x43004300, 0xEA;
    lop3.b32 $3, c, 0x000F000F, 0x43004300, 0xEA;
    sub.rn.bf16x2 $0, $0, $5;
    sub.rn.bf16x2 $1, $1, $6;
    sub.rn.bf16x2 $2, $2, $7;
    sub.rn.bf16x2 $3, $3, $8;
"""
"""A nibble in the mantissa of bfloat16's 128 makes 128 + n, of which 128 plus the zero point is subtracted."""

_INT4 = gl.constexpr("{" + _NIBBLES + "}")

_SCALED_INT4 = gl.constexpr("{" + _NIBBLES + """
    mul.rn.bf16x2 $0, $0, $9;
    mul.rn.bf16x2 $1, $1, $10;
    mul.rn.bf16x2 $2, $2, $11;
    mul.rn.bf16x2 $3, $3, $12;
}""")  # fmt: skip

MXFP4_FACTOR = gl.constexpr(62)
"""Exponent that scales of MXFP4 are raised by. Widened codes are 2¹²⁶ too small, and 2¹²⁶ itself is no scale."""
MXFP4_BACK = gl.constexpr(2.0**64)
"""Factor of finished sums of widened MXFP4: the rest of the 2¹²⁶."""
MXFP4_REGISTERS = ".reg .b32 l, r, e, m, s;"
"""Declared once wherever lines of `mxfp4_ptx` are used."""


def mxfp4_ptx(code: str, wide: list[str], scales: list[str]) -> list[str]:
    """Lines of PTX that widen a word of eight MXFP4 codes to four registers of two bfloat16 each and scale them.

    Exponent and mantissa of e2m1 are adjacent, as in bfloat16, where they count in units of 2⁻¹²⁶, also of subnormals.
    """
    return [
        f"shl.b32 l, {code}, 3;",
        f"shl.b32 r, {code}, 6;",
        f"shr.b32 e, {code}, 6;",
        f"shr.b32 m, {code}, 5;",
        f"shl.b32 s, {code}, 5;",
        f"and.b32 {wide[0]}, {code}, 0x81C081C0;",
        f"and.b32 {wide[1]}, l, 0x81C081C0;",
        f"and.b32 {wide[2]}, r, 0x81C081C0;",
        f"and.b32 {wide[3]}, e, 0x01800180;",
        f"lop3.b32 {wide[3]}, m, 0x00400040, {wide[3]}, 0xEA;",
        f"lop3.b32 {wide[3]}, s, 0x80008000, {wide[3]}, 0xEA;",
        *(f"mul.rn.bf16x2 {pair}, {pair}, {scale};" for pair, scale in zip(wide, scales, strict=True)),
    ]


_MXFP4 = gl.constexpr(
    "\n".join(["{", MXFP4_REGISTERS, *mxfp4_ptx("$4", ["$0", "$1", "$2", "$3"], ["$5", "$5", "$9", "$9"]), "}"])
)


@gluon.jit
def as_operand(w, MMA: gl.constexpr):
    """Turn widened values into a warpgroup's register operand. Of every 16 columns a thread holds 4 neighbours; the
    product takes them as two pairs, 8 columns apart."""
    M: gl.constexpr = w.shape[0]
    K: gl.constexpr = w.shape[1]
    w = w.reshape([M, K // 16, 4, 2, 2]).permute((0, 1, 3, 2, 4)).reshape([M, K])
    return gl.convert_layout(w, gl.DotOperandLayout(0, MMA, 2))


@gluon.jit
def widen_bytes(raw, MMA: gl.constexpr):
    """Widen int8 or e4m3 (as uint8) [M, K] to an operand."""
    PTX: gl.constexpr = _INT8 if raw.dtype == gl.int8 else _E4M3
    w = gl.inline_asm_elementwise(PTX, "=r,=r,r", [raw], gl.bfloat16, is_pure=True, pack=4)
    return as_operand(w, MMA)


@gluon.jit
def widen_int4(raw, first_zero, second_zero):
    """Widen bytes of two nibbles, less 128 plus their zero points: bfloat16 of the low ones, and of the high ones."""
    return gl.inline_asm_elementwise(
        _INT4, "=&r,=&r,=&r,=&r,r,r,r,r,r", [raw, first_zero, second_zero],
        (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def widen_scaled_int4(raw, first_zero, second_zero, first_scale, second_scale):
    """The same, multiplied by their scales."""
    return gl.inline_asm_elementwise(
        _SCALED_INT4, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r", [raw, first_zero, second_zero, first_scale, second_scale],
        (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def widen_mxfp4(raw, first_scale, second_scale):
    """Widen words of MXFP4 codes and multiply them by their scales, each twice in an int32: bfloat16 of the first
    plane, and of the second."""
    return gl.inline_asm_elementwise(
        _MXFP4, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r", [raw, first_scale, second_scale],
        (gl.bfloat16, gl.bfloat16), is_pure=True, pack=4,
    )  # fmt: skip
