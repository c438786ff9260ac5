"""Stacks of experts' weights in MXFP4 as a GPU streams them: packing, and back to more bits.

A value is e2m1: a sign, two bits of exponent, one of mantissa. Blocks of 32 columns share a power of two (OCP MX 1.0).

Stored order. A line of 64 bytes holds 128 columns in two planes of 64. Of every 16 columns bytes stand as in
`quantised_weight.py`, so that a thread of the matrix unit's register operand loads what it multiplies: two neighbours
of the first plane and the same two of the second share 16 bits. There a code's sign and size stand as far apart as in
bfloat16, so that a shift and a mask widen it; the fourth has the bits that are left. Columns are padded to whole lines
with zeros.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from baton_kernels.dense.mxfp4_stack import BLOCK, BLOCKS_A_LINE, LINE_COLUMNS, Mxfp4Stack
from baton_kernels.dense.quantised_weight import column_order, stored_order

VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of e2m1 without its sign."""
SCALE_LIMIT: Final = 192
"""2⁶⁵: larger ones leave the range in which `streamed_mxfp4.py` scales."""


_SHIFTS: Final = (((15, 7, 6), (12, 4, 3)), ((9, 1, 0), (10, 13, 11)))
"""Bits of sign, exponent and mantissa, by plane and neighbour."""
_FOUR: Final = ((0, 0), (0, 1), (1, 0), (1, 1))


def pack_mxfp4(codes: Tensor, scales: Tensor) -> Mxfp4Stack:
    """codes uint8 [E, N, K] of 0 to 15, scales uint8 [E, N, K / 32], K a multiple of 32. Raises ValueError."""
    experts, features, columns = codes.shape
    if columns % BLOCK or list(scales.shape) != [experts, features, columns // BLOCK]:
        shapes = f"{list(codes.shape)} and {list(scales.shape)}"
        raise ValueError(f"codes and scales have shapes {shapes}; allowed are [E, N, K] and [E, N, K / {BLOCK}]")
    padding = -columns % LINE_COLUMNS
    wide = torch.nn.functional.pad(codes, (0, padding))
    planes = stored_order(wide.flatten(0, 1)).view(experts * features, -1, 2, LINE_COLUMNS // 4, 2)
    words = sum(_places(planes[:, :, plane, :, side].int(), _SHIFTS[plane][side]) for plane, side in _FOUR)
    assert isinstance(words, Tensor)
    lines = torch.stack((words & 255, words >> 8), -1).to(torch.uint8).view(experts, features, -1, LINE_COLUMNS // 2)
    of_lines = torch.nn.functional.pad(scales, (0, padding // BLOCK)).view(experts, features, -1, BLOCKS_A_LINE)
    values, exponents = (tensor.transpose(1, 2).contiguous() for tensor in (lines, of_lines))
    return Mxfp4Stack(values, exponents, columns)


def _places(codes: Tensor, bits: tuple[int, int, int]) -> Tensor:
    sign, exponent, mantissa = bits
    return codes >> 3 << sign | (codes >> 1 & 3) << exponent | (codes & 1) << mantissa


def _code(words: Tensor, bits: tuple[int, int, int]) -> Tensor:
    sign, exponent, mantissa = bits
    return (words >> sign & 1) << 3 | (words >> exponent & 3) << 1 | words >> mantissa & 1


def dequantise_mxfp4(stack: Mxfp4Stack, dtype: torch.dtype) -> Tensor:
    """W [E, N, K], exact in bfloat16 where a scale's exponent has room."""
    if stack.values.is_cuda:
        from baton_kernels.dense.gpu.dequantise import mxfp4_triton

        return mxfp4_triton(stack, dtype)
    return dequantise_mxfp4_reference(stack).to(dtype)


def dequantise_mxfp4_reference(stack: Mxfp4Stack) -> Tensor:
    """The formula, float32 [E, N, K]."""
    experts, count, features, _ = stack.values.shape
    lines = stack.values.transpose(1, 2).reshape(experts * features, count, LINE_COLUMNS // 4, 2).int()
    words = lines[..., 0] | lines[..., 1] << 8
    planes = [[_code(words, shifts) for shifts in plane] for plane in _SHIFTS]
    stored = torch.stack([torch.stack(plane, -1).flatten(2) for plane in planes], 2)
    codes = column_order(stored.flatten(1)).view(experts, features, -1)
    values = torch.tensor(VALUES, device=codes.device)[(codes & 7).int()]
    values = torch.where(codes > 7, -values, values)
    exponents = stack.scales.transpose(1, 2).flatten(2).int().repeat_interleave(BLOCK, 2) - 127
    wide: Tensor = torch.ldexp(values, exponents)
    return wide[:, :, : stack.columns]
