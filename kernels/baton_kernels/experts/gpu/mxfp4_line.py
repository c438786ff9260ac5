"""A warp's product of a line of 128 columns in MXFP4, in Gluon: from memory to sums without shared memory.

A thread loads the 16 bytes of a line that it multiplies itself. Codes become bfloat16 in registers as in
`streamed_mxfp4.py` and are the left operand of a warp's product of 16 rows; x is its right one, the same in all eight
columns. In which order columns are added is free, as long as x has the same: thread q of a row's four takes 16
neighbours of each plane of the line.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from baton_kernels.dense.gpu.widening import MXFP4_REGISTERS, mxfp4_ptx

WORDS = gl.constexpr(4)
"""Words of 32 bits that a thread loads at once."""


def _line_product() -> str:
    """PTX for a warp: sums of 16 rows + a line's products.

    Outputs and last operands: sums of rows g and g + 8 of the first plane, then of the second. Before them four words
    of row g and of row g + 8, their scales (each four times the same: that of the first plane in the low half), and x:
    columns 0 to 7 and 8 to 15 of a thread's 16 in the first plane, then in the second. A product takes what two
    neighbouring words have at the same place, since x has that side by side.
    """
    wide = [f"{row}{word}{place}" for row in "gh" for word in (0, 1) for place in range(4)]
    scales = [f"s{row}{plane}" for row in "gh" for plane in (0, 1)]
    sums = [f"d{plane}{at}" for plane in (0, 1) for at in range(4)]
    text = [MXFP4_REGISTERS, f".reg .b32 {', '.join(wide + scales)};", f".reg .f32 z, {', '.join(sums)};"]
    text.append("mov.f32 z, 0f00000000;")
    for row, factor in (("g", "$12"), ("h", "$16")):
        text += [f"prmt.b32 s{row}0, {factor}, {factor}, 0x1010;", f"prmt.b32 s{row}1, {factor}, {factor}, 0x3232;"]
    for half in (0, 1):
        for word in (0, 1):
            for row, first in (("g", 4), ("h", 8)):
                pairs = [f"{row}{word}{place}" for place in range(4)]
                text += mxfp4_ptx(f"${first + 2 * half + word}", pairs, [f"s{row}{place // 2}" for place in range(4)])
        for place in range(4):
            plane, at = place // 2, 20 + 4 * place + 2 * half
            left = ", ".join(f"{row}{word}{place}" for word in (0, 1) for row in "gh")
            total = ", ".join(f"d{plane}{register}" for register in range(4))
            before = "z, z, z, z" if half == 0 and place % 2 == 0 else total
            text.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{total}}}, {{{left}}}, {{${at}, ${at + 1}}}, "
                f"{{{before}}};"
            )
    text += [f"add.f32 ${sum_}, ${36 + sum_}, d{sum_ // 2}{sum_ % 2 * 2};" for sum_ in range(4)]
    return "{\n" + "\n".join(text) + "\n}"


LINE_PRODUCT = gl.constexpr(_line_product())
LINE_OPERANDS = gl.constexpr(",".join(["=&f"] * 4 + ["r"] * 32 + ["f"] * 4))


@gluon.jit
def x_of_line(x_ptr, columns, line, quarter, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """Load what a thread multiplies of a line of x, bfloat16 in pairs: four times four words.

    After the last column any values will do: the codes there are zeros."""
    low = line * 64 + quarter * 8
    high = low + 32
    if LAST:
        low, high = gl.minimum(low, columns // 2 - 8), gl.minimum(high, columns // 2 - 8)
    word = gl.arange(0, WORDS, gl.SliceLayout(0, LAYOUT))[None, :]
    low, high = (x_ptr + low)[:, None] + word, (x_ptr + high)[:, None] + word
    return gl.load(low), gl.load(low + 4), gl.load(high), gl.load(high + 4)


@gluon.jit
def weights_of_line(values_ptr, features, line, quarter, LINES: gl.constexpr, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """Load 16 bytes of each row that a pointer points to."""
    own = gl.minimum(line, LINES - 1) if LAST else line
    place = values_ptr + (own * (features * 16) + quarter * 4)
    word = gl.arange(0, WORDS, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(place[:, None] + word)


@gluon.jit
def factors_of_line(scales_ptr, features, line, quarter, LINES: gl.constexpr, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """Load a bfloat16 factor for each plane of each row that a pointer points to, 0 after the last line."""
    own = gl.minimum(line, LINES - 1) if LAST else line
    exponents = gl.load(scales_ptr + own * features) >> (quarter // 2 * 8)
    factor = (exponents & 0x00FF00FF) * 128 + 0x1F001F00
    if LAST:
        factor = gl.where(line < LINES, factor, 0)
    return gl.expand_dims(factor, 1).broadcast_to([factor.shape[0], WORDS])


@gluon.jit
def add_line(total, one, other, one_factor, other_factor, x):
    return gl.inline_asm_elementwise(
        LINE_PRODUCT, LINE_OPERANDS, [one, other, one_factor, other_factor, x[0], x[1], x[2], x[3], total],
        gl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def sums_of_rows(total, LAYOUT: gl.constexpr):
    """Add up the sums of row g and of row g + 8, each [threads]."""
    rows = gl.sum(total.reshape([total.shape[0], 2, 2]), 1)
    one, other = gl.split(rows)
    return gl.convert_layout(one, gl.SliceLayout(1, LAYOUT)), gl.convert_layout(other, gl.SliceLayout(1, LAYOUT))
