"""Experts in MXFP4 of a token alone on Hopper, in Gluon: two kernels, without sorting and without a sum behind them.

Each pair of the token and an expert reads its expert's weights, as in `experts.py`. A thread loads the 16 bytes of a
line that it multiplies itself, so nothing goes through shared memory but the warps' sums. Codes become bfloat16 in
registers as in `streamed_mxfp4.py` and are the left operand of a warp's product of 16 rows; x is its right one, the
same in all eight columns. In which order columns are added is free, as long as x has the same: thread q of a row's
four takes 16 neighbours of each plane of the line.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from baton_kernels.mxfp4_weight import Mxfp4Stack

FEATURES = gl.constexpr(16)
"""Of gate, and as many of up, a program: the rows of a warp's product."""
OUTPUTS = gl.constexpr(8)
"""A program: a warp's product has those of two experts."""
WORDS = gl.constexpr(4)
"""Of 32 bits that a thread loads at once."""
_BACK = gl.constexpr(2.0**64)
"""Widened codes are 2¹²⁶ too small; their scales make up for 2⁶²."""


def _line_product(of_columns: bool) -> str:
    """PTX for a warp: sums of 16 rows + a line's products.

    Outputs and last operands: sums of rows g and g + 8 of the first plane, then of the second; or `of_columns` what a
    thread holds of a product, two columns of each of both rows. Before them four words
    of row g and of row g + 8, their scales (each four times the same: that of the first plane in the low half), and x:
    columns 0 to 7 and 8 to 15 of a thread's 16 in the first plane, then in the second. A product takes what two
    neighbouring words have at the same place, since x has that side by side.
    """
    wide = [f"{row}{word}{place}" for row in "gh" for word in (0, 1) for place in range(4)]
    scales = [f"s{row}{plane}" for row in "gh" for plane in (0, 1)]
    sums = [f"d{plane}{at}" for plane in (0, 1) for at in range(4)]
    text = [f".reg .b32 l, r, e, m, s, {', '.join(wide + scales)};", f".reg .f32 z, {', '.join(sums)};"]
    text.append("mov.f32 z, 0f00000000;")
    for row, factor in (("g", "$12"), ("h", "$16")):
        text += [f"prmt.b32 s{row}0, {factor}, {factor}, 0x1010;", f"prmt.b32 s{row}1, {factor}, {factor}, 0x3232;"]
    for half in (0, 1):
        for word in (0, 1):
            for row, first in (("g", 4), ("h", 8)):
                text += _widened(f"${first + 2 * half + word}", f"{row}{word}", f"s{row}")
        for place in range(4):
            plane, at = place // 2, 20 + 4 * place + 2 * half
            left = ", ".join(f"{row}{word}{place}" for word in (0, 1) for row in "gh")
            total = ", ".join(f"d{plane}{register}" for register in range(4))
            before = "z, z, z, z" if half == 0 and place % 2 == 0 else total
            text.append(
                f"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{total}}}, {{{left}}}, {{${at}, ${at + 1}}}, "
                f"{{{before}}};"
            )
    if of_columns:
        text += [f"add.f32 ${at}, ${36 + at}, d0{at};\nadd.f32 ${at}, ${at}, d1{at};" for at in range(4)]
    else:
        text += [f"add.f32 ${sum_}, ${36 + sum_}, d{sum_ // 2}{sum_ % 2 * 2};" for sum_ in range(4)]
    return "{\n" + "\n".join(text) + "\n}"


def _widened(code: str, wide: str, scale: str) -> list[str]:
    """PTX that makes four registers of two bfloat16 each of a word, as `streamed_mxfp4.py` does."""
    return [
        f"shl.b32 l, {code}, 3;",
        f"shl.b32 r, {code}, 6;",
        f"shr.b32 e, {code}, 6;",
        f"shr.b32 m, {code}, 5;",
        f"shl.b32 s, {code}, 5;",
        f"and.b32 {wide}0, {code}, 0x81C081C0;",
        f"and.b32 {wide}1, l, 0x81C081C0;",
        f"and.b32 {wide}2, r, 0x81C081C0;",
        f"and.b32 {wide}3, e, 0x01800180;",
        f"lop3.b32 {wide}3, m, 0x00400040, {wide}3, 0xEA;",
        f"lop3.b32 {wide}3, s, 0x80008000, {wide}3, 0xEA;",
        *(f"mul.rn.bf16x2 {wide}{place}, {wide}{place}, {scale}{place // 2};" for place in range(4)),
    ]


LINE_PRODUCT = gl.constexpr(_line_product(of_columns=False))
LINE_PRODUCT_OF_COLUMNS = gl.constexpr(_line_product(of_columns=True))
LINE_OPERANDS = gl.constexpr(",".join(["=&f"] * 4 + ["r"] * 32 + ["f"] * 4))


@gluon.jit
def _x_of_line(x_ptr, columns, line, quarter, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """Of bfloat16 in pairs, what a thread multiplies of a line: four times four words.

    Behind the last column any will do: the codes there are zeros."""
    low = line * 64 + quarter * 8
    high = low + 32
    if LAST:
        low, high = gl.minimum(low, columns // 2 - 8), gl.minimum(high, columns // 2 - 8)
    word = gl.arange(0, WORDS, gl.SliceLayout(0, LAYOUT))[None, :]
    low, high = (x_ptr + low)[:, None] + word, (x_ptr + high)[:, None] + word
    return gl.load(low), gl.load(low + 4), gl.load(high), gl.load(high + 4)


@gluon.jit
def _weights_of_line(values_ptr, line, quarter, LINES: gl.constexpr, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """Of the rows that the pointers point to, 16 bytes."""
    own = gl.minimum(line, LINES - 1) if LAST else line
    place = values_ptr + (own * 16 + quarter * 4)
    word = gl.arange(0, WORDS, gl.SliceLayout(0, LAYOUT))[None, :]
    return gl.load(place[:, None] + word)


@gluon.jit
def _factors(scales_ptr, features, line, quarter, LINES: gl.constexpr, LAST: gl.constexpr, LAYOUT: gl.constexpr):
    """Of the rows that the pointers point to, a factor for each plane in bfloat16, 0 behind the last line."""
    own = gl.minimum(line, LINES - 1) if LAST else line
    exponents = gl.load(scales_ptr + own * features) >> (quarter // 2 * 8)
    factor = (exponents & 0x00FF00FF) * 128 + 0x1F001F00
    if LAST:
        factor = gl.where(line < LINES, factor, 0)
    return gl.expand_dims(factor, 1).broadcast_to([factor.shape[0], WORDS])


@gluon.jit
def _add_line(total, one, other, one_factor, other_factor, x, PRODUCT: gl.constexpr = LINE_PRODUCT):
    return gl.inline_asm_elementwise(
        PRODUCT, LINE_OPERANDS, [one, other, one_factor, other_factor, x[0], x[1], x[2], x[3], total],
        gl.float32, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def _of_rows(total, LAYOUT: gl.constexpr):
    """Sums of row g and of row g + 8, each [threads]."""
    rows = gl.sum(total.reshape([total.shape[0], 2, 2]), 1)
    one, other = gl.split(rows)
    return gl.convert_layout(one, gl.SliceLayout(1, LAYOUT)), gl.convert_layout(other, gl.SliceLayout(1, LAYOUT))


@gluon.jit
def _gate_up_kernel(
    x_ptr, values_ptr, scales_ptr, bias_ptr, experts_ptr, inner_ptr, K, H, F, limit, alpha, LINES: gl.constexpr,
    WARPS: gl.constexpr,
):  # fmt: skip
    gdc_launch_dependents()
    THREADS: gl.constexpr = 32 * WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WORDS], [32, 1], [WARPS, 1], [1, 0])
    thread = gl.arange(0, THREADS, gl.SliceLayout(1, LAYOUT))
    quarter = thread % 4
    pair = gl.program_id(1)
    row = gl.program_id(0) * FEATURES + thread % 32 // 4
    gdc_wait()
    expert = gl.load(experts_ptr + pair)
    values = values_ptr + expert * 2 * F * LINES * 16 + row * LINES * 16
    scales = scales_ptr + expert * 2 * F * LINES + row
    x_ptr += pair // K * (H // 2)
    gate = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
    up = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
    for first in gl.static_range(0, LINES, WARPS):
        last = first + WARPS >= LINES
        line = first + thread // 32
        gate0 = _weights_of_line(values, line, quarter, LINES, last, LAYOUT)
        gate1 = _weights_of_line(values + 8 * LINES * 16, line, quarter, LINES, last, LAYOUT)
        up0 = _weights_of_line(values + F * LINES * 16, line, quarter, LINES, last, LAYOUT)
        up1 = _weights_of_line(values + (F + 8) * LINES * 16, line, quarter, LINES, last, LAYOUT)
        of_gate0 = _factors(scales, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_gate1 = _factors(scales + 8, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_up0 = _factors(scales + F, 2 * F, line, quarter, LINES, last, LAYOUT)
        of_up1 = _factors(scales + F + 8, 2 * F, line, quarter, LINES, last, LAYOUT)
        x = _x_of_line(x_ptr, H, line, quarter, last, LAYOUT)
        gate = _add_line(gate, gate0, gate1, of_gate0, of_gate1, x)
        up = _add_line(up, up0, up1, of_up0, of_up1, x)
    # All eight columns of a product are the same, so that the four threads of a row have one of its four sums each.
    gate0, gate1 = _of_rows(gate, LAYOUT)
    up0, up1 = _of_rows(up, LAYOUT)
    own = gl.where(quarter < 2, gl.where(quarter == 0, gate0, gate1), gl.where(quarter == 2, up0, up1))
    sums = gl.sum(own.reshape([WARPS, 32]), 0) * _BACK
    PAIRED: gl.constexpr = gl.BlockedLayout([1, 1, 2], [8, 4, 1], [1, 1, WARPS], [2, 1, 0])
    both = gl.convert_layout(sums.reshape([8, 2, 2]).permute((0, 2, 1)), PAIRED)
    gate, up = gl.split(both)  # [8, 2]: feature g, and g + 8
    ROW: gl.constexpr = gate.type.layout
    feature = gl.arange(0, 8, gl.SliceLayout(1, ROW))[:, None] + 8 * gl.arange(0, 2, gl.SliceLayout(0, ROW))[None, :]
    feature += gl.program_id(0) * FEATURES
    biases = bias_ptr + expert * 2 * F + feature
    dtype: gl.constexpr = inner_ptr.dtype.element_ty
    gate += gl.load(biases).to(gl.float32)
    up += gl.load(biases + F).to(gl.float32)
    gate = gl.minimum(gate.to(dtype).to(gl.float32), limit)  # rounded where the separate ops round
    up = gl.minimum(gl.maximum(up.to(dtype).to(gl.float32), -limit), limit)
    inner = gate / (1.0 + gl.exp(gl.minimum(-alpha * gate, 80.0))) * (up + 1.0)
    gl.store(inner_ptr + pair * F + feature, inner.to(dtype))


@gluon.jit
def _down_kernel(
    inner_ptr, values_ptr, scales_ptr, bias_ptr, shares_ptr, experts_ptr, out_ptr, H, F, K: gl.constexpr,
    LINES: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """All chosen experts of a token, weighted and added.

    A product's rows are outputs of two experts, and so are its columns: each quarter of it belongs to one of both, and
    two quarters are what is wanted."""
    gdc_launch_dependents()
    THREADS: gl.constexpr = 32 * WARPS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WORDS], [32, 1], [WARPS, 1], [1, 0])
    thread = gl.arange(0, THREADS, gl.SliceLayout(1, LAYOUT))
    quarter = thread % 4
    token = gl.program_id(1)
    row = gl.program_id(0) * OUTPUTS + thread % 32 // 4
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    gdc_wait()
    SUMS: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [1, WARPS], [1, 0])
    output = gl.program_id(0) * OUTPUTS + gl.arange(0, 8, gl.SliceLayout(1, SUMS))
    sum_of_all = gl.zeros([8], gl.float32, gl.SliceLayout(1, SUMS))
    for group in gl.static_range(0, K, 4):
        own = gl.zeros([THREADS], gl.float32, gl.SliceLayout(1, LAYOUT))
        for choice in gl.static_range(group, min(group + 4, K), 2):
            second = min(choice + 1, K - 1)
            expert0 = gl.load(experts_ptr + token * K + choice) * H * LINES
            expert1 = gl.load(experts_ptr + token * K + second) * H * LINES
            values0 = values_ptr + expert0 * 16 + row * LINES * 16
            values1 = values_ptr + expert1 * 16 + row * LINES * 16
            column_choice = gl.where(thread % 32 < 16, choice, second)
            x_ptr = inner_ptr + (token * K + column_choice) * (F // 2)
            total = gl.zeros([THREADS, WORDS], gl.float32, LAYOUT)
            for first in gl.static_range(0, LINES, WARPS):
                last = first + WARPS >= LINES
                line = first + thread // 32
                one = _weights_of_line(values0, line, quarter, LINES, last, LAYOUT)
                other = _weights_of_line(values1, line, quarter, LINES, last, LAYOUT)
                of_one = _factors(scales_ptr + expert0 + row, H, line, quarter, LINES, last, LAYOUT)
                of_other = _factors(scales_ptr + expert1 + row, H, line, quarter, LINES, last, LAYOUT)
                x = _x_of_line(x_ptr, F, line, quarter, last, LAYOUT)
                total = _add_line(total, one, other, of_one, of_other, x)
            row0, row1 = _of_rows(total, LAYOUT)
            own = gl.where(quarter % 2 == (choice - group) // 2, gl.where(quarter < 2, row0, row1), own)
        at = gl.arange(0, 4, gl.SliceLayout(0, SUMS))
        place = group + at % 2 * 2 + at // 2
        known = place < K
        share = gl.load(shares_ptr + token * K + place, mask=known, other=0.0)
        expert = gl.load(experts_ptr + token * K + place, mask=known, other=0)
        bias = gl.load(bias_ptr + (expert * H)[None, :] + output[:, None]).to(gl.float32)
        y = gl.convert_layout(gl.sum(own.reshape([WARPS, 8, 4]), 0), SUMS) * _BACK + bias
        sum_of_all += gl.sum(y.to(dtype).to(gl.float32) * share[None, :], 1)
    gl.store(out_ptr + token * H + output, sum_of_all.to(dtype))


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """Warps of a program of gate and up, and of one of down, which share a row's lines; and registers of a thread."""

    gate_warps: int = 4
    gate_registers: int = 80
    """All programs of one token and four experts of gpt-oss-20b run at once then."""
    down_warps: int = 4
    down_registers: int = 128


def token_experts_mxfp4(
    x: Tensor, gate_up: Mxfp4Stack, down: Mxfp4Stack, biases: tuple[Tensor, Tensor], shares: Tensor, experts: Tensor,
    limit: float, alpha: float, config: TokenConfig | None = None,
) -> Tensor:  # fmt: skip
    """As `baton_kernels.experts.biased_experts` for a few tokens in bfloat16, which read their experts each. All
    contiguous, H and F multiples of 16."""
    (tokens, hidden), per_token, features = x.shape, experts.shape[1], down.columns
    inner = torch.empty(tokens * per_token, features, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    if not tokens:
        return out
    config = config or TokenConfig()
    of_gate, of_down = (stack.values.shape[2] // 64 for stack in (gate_up, down))
    _gate_up_kernel[(features // int(FEATURES.value), tokens * per_token)](
        x.view(torch.int32), gate_up.values.view(torch.int32), gate_up.scales.view(torch.int32), biases[0], experts,
        inner, per_token, hidden, features, limit, alpha, of_gate, config.gate_warps, num_warps=config.gate_warps,
        maxnreg=config.gate_registers, launch_pdl=True,
    )  # fmt: skip
    _down_kernel[(hidden // int(OUTPUTS.value), tokens)](
        inner.view(torch.int32), down.values.view(torch.int32), down.scales.view(torch.int32), biases[1], shares,
        experts, out, hidden, features, per_token, of_down, config.down_warps, num_warps=config.down_warps,
        maxnreg=config.down_registers, launch_pdl=True,
    )  # fmt: skip
    return out
