"""The choice of a quantised linear layer's way on a GPU: streamed as it is stored (Gluon, Hopper), multiplied in 8
bits on both sides, or brought back to 16 bits first."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from baton_kernels.dense.gpu import block_product, linear, streamed_int4
from baton_kernels.dense.gpu.dequantise import dequantise_triton
from baton_kernels.dense.gpu.int8_product import int8_product
from baton_kernels.dense.gpu.pipeline import LINE
from baton_kernels.dense.gpu.rounded_activations import (
    gate_groups,
    gate_rounded,
    quantise_groups,
    quantise_rows,
    scale_product,
    swiglu_rounded,
)
from baton_kernels.dense.gpu.streamed_quantised import (
    MAX_ROWS,
    MOST_ROWS,
    QuantisedConfig,
    streamed_quantised,
    x_rows,
)
from baton_kernels.dense.quantised_weight import QuantisedWeight
from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct, plain
from baton_kernels.dense.swiglu import swiglu

SHARED_BYTES = 228 * 1024
"""Shared memory of a multiprocessor."""
PIECED_ROWS = 256
"""Most rows of 8-bit integers that are multiplied in pieces. Each piece streams all of W, which still costs less than
writing W in 16 bits and reading it again."""
MULTIPROCESSORS = 132
LIBRARY_COLUMNS = 512
"""cuBLAS lays out scales of blocks four columns of blocks at a time; with others it gives wrong sums, not an error."""
MANY_ROWS = 512
"""From more rows on the library's products with a scale a row are as fast as those without."""
GATED_ROWS = (range(1, 129), range(225, 257))
"""Rows of gate and up that are faster with a scale a row in the library's product than with one brought afterwards: its
tiles have 128 rows."""
PROGRAM_BYTES = 3584
"""Shared memory that a program takes in addition to its tiles."""


def quantised_linear_cuda(
    rows: Tensor | RoundedRows, weight: QuantisedWeight, bias: Tensor | None, gated: bool
) -> Tensor:
    """As `baton_kernels.dense.quantised_linear.quantised_linear`."""
    x = plain(rows)
    features, size = weight.values.shape
    if weight.bits == 4 and streams(x[:1], features, gated) and streamed_int4.pays(x.shape[0], weight, gated):
        return streamed_int4.streamed_int4(x, weight, bias, gated)
    if streams(x, features, gated):
        groups = (t for t in (weight.scales, weight.zeros) if t is not None and t.dim() == 2)
        group_bytes = sum(t.element_size() for t in groups)
        config = default_config(x_rows(x.shape[0]), features, size, weight.bits, group_bytes, gated)
        return streamed_quantised(x, weight, bias, config, gated)
    if rounds(x, weight):
        y = _rounded_product(rows, weight, bias)
        return swiglu(y) if gated else y
    if weight.bits == 8 and x.shape[0] <= PIECED_ROWS and streams(x[:1], features, gated):
        return _in_pieces(x, weight, bias, gated)
    stored = x.index_select(1, _stored_columns(x.shape[1], x.device))
    return linear.linear_cuda(stored, dequantise_triton(weight, x.dtype), bias, gated, recorded=False)


def _in_pieces(x: Tensor, weight: QuantisedWeight, bias: Tensor | None, gated: bool) -> Tensor:
    """Multiply by 8 bits, as many rows at once as the sums leave registers for."""
    features, size = weight.values.shape
    most = MOST_ROWS if weight.scales.dim() == 1 else MAX_ROWS
    pieces = torch.split(x, most)
    if len(pieces) > 1:
        return torch.cat([quantised_linear_cuda(piece, weight, bias, gated) for piece in pieces])
    return streamed_quantised(x, weight, bias, wide_config(features, size, gated), gated)


def quantised_product_cuda(
    rows: Tensor | RoundedRows, weight: QuantisedWeight, bias: Tensor | None
) -> Tensor | ScaledProduct:
    """As `baton_kernels.dense.quantised_linear.quantised_product`."""
    x = plain(rows)
    if streams(x, weight.values.shape[0], False) or not rounds(x, weight) or weight.blocks is not None:
        return quantised_linear_cuda(rows, weight, bias, False)
    return _product_of_codes(*_rounded(rows, weight), weight, bias, x.dtype)


def rounded_dtype(x: Tensor, weight: QuantisedWeight, gated: bool) -> torch.dtype | None:
    """In which rows x are multiplied with the weight, if not in their own: each with one scale."""
    rounded = rounds(x, weight) and not streams(x, weight.values.shape[0], gated)
    return _codes(weight) if rounded and weight.blocks is None and weight.order is None else None


def finished(y: Tensor | ScaledProduct) -> Tensor:
    return scale_product(y.values, y.row_scales, y.scales, None) if isinstance(y, ScaledProduct) else y


def quantised_mlp_cuda(
    rows: Tensor | RoundedRows,
    gate_up: QuantisedWeight,
    gate_up_bias: Tensor | None,
    down: QuantisedWeight,
    down_bias: Tensor | None,
) -> Tensor | ScaledProduct | None:
    """As `baton_kernels.dense.quantised_linear.quantised_mlp_product`, without rounding to 16 bits between; None where
    the two products are not made so."""
    x = plain(rows)
    if _rounds_groups(x, gate_up) and _rounds_groups(x, down) and not streams(x, gate_up.values.shape[0], True):
        y = _product_of_groups(*quantise_groups(x), gate_up, gate_up_bias, x)
        return _product_of_groups(*gate_groups(y), down, down_bias, x)
    channels = gate_up.scales.dim() == 1 and down.scales.dim() == 1 and down.order is None
    alike = rounds(x, gate_up) and rounds(x, down) and gate_up.is_float == down.is_float
    if streams(x, gate_up.values.shape[0], True) or not (channels and alike):
        return None
    kind = _codes(gate_up)
    codes, scales = _rounded(rows, gate_up)
    if not gate_up.is_float:
        inner = gate_rounded(int8_product(codes, scales, gate_up, gate_up_bias, x.dtype), kind)
    elif len(x) > MANY_ROWS or any(len(x) in few for few in GATED_ROWS):
        inner = gate_rounded(_scaled(codes, scales, gate_up, gate_up_bias, x.dtype), kind)
    else:
        y = _unscaled(codes, gate_up, x.dtype)
        inner = swiglu_rounded(y, scales, gate_up.scales, gate_up_bias, kind)
    return _product_of_codes(*inner, down, down_bias, x.dtype)


def rounds(x: Tensor, weight: QuantisedWeight) -> bool:
    """Decide if rows x are multiplied in 8 bits, as the weight is."""
    scaled = weight.scales.dim() == 1 or (weight.blocks is not None and weight.columns % LIBRARY_COLUMNS == 0)
    known = weight.rounds_inputs and scaled and x.dtype == torch.bfloat16 and x.shape[0] > 0
    return known and is_hopper(x.device)


def _codes(weight: QuantisedWeight) -> torch.dtype:
    """Dtype of the rows that a weight is multiplied with."""
    return torch.float8_e4m3fn if weight.is_float else torch.int8


def _rounded(rows: Tensor | RoundedRows, weight: QuantisedWeight) -> tuple[Tensor, Tensor]:
    """Codes [T, K] for the weight and scales [T, 1]."""
    kind = _codes(weight)
    if isinstance(rows, RoundedRows) and rows.codes.dtype == kind:
        return rows.codes, rows.scales
    return quantise_rows(plain(rows), kind)


def _rounded_product(rows: Tensor | RoundedRows, weight: QuantisedWeight, bias: Tensor | None) -> Tensor:
    """With activations in 8 bits: [T, N]."""
    x = plain(rows)
    if weight.blocks is None:
        return finished(_product_of_codes(*_rounded(rows, weight), weight, bias, x.dtype))
    return _product_of_groups(*quantise_groups(x), weight, bias, x)


def _rounds_groups(x: Tensor, weight: QuantisedWeight) -> bool:
    """Decide if rows x are multiplied in e4m3 with a scale for each 128 columns."""
    return weight.blocks is not None and weight.order is None and rounds(x, weight)


def _product_of_groups(
    codes: Tensor, scales: Tensor, weight: QuantisedWeight, bias: Tensor | None, x: Tensor
) -> Tensor:
    """Multiply codes [T', K] with scales by groups by the weight → [T, N], as many rows and of the dtype as x."""
    assert weight.blocks is not None
    if block_product.pays(len(x), *weight.values.shape):
        y = block_product.block_product(codes, scales, weight, len(x), x.dtype)
        return y if bias is None else y.add_(bias)
    values = weight.values.view(torch.float8_e4m3fn).t()
    y = torch._scaled_mm(codes, values, scales, weight.blocks.t(), out_dtype=x.dtype)[: len(x)]
    return y if bias is None else y.add_(bias)


def _product_of_codes(
    codes: Tensor, scales: Tensor, weight: QuantisedWeight, bias: Tensor | None, dtype: torch.dtype
) -> Tensor | ScaledProduct:
    """Multiply codes [T, K] with scales [T, 1] by the weight → [T, N]."""
    if not weight.is_float:
        return int8_product(codes, scales, weight, bias, dtype)
    if codes.shape[0] > MANY_ROWS:
        return _scaled(codes, scales, weight, bias, dtype)
    y = _unscaled(codes, weight, dtype)
    return ScaledProduct(y, scales, weight.scales) if bias is None else scale_product(y, scales, weight.scales, bias)


def _scaled(codes: Tensor, scales: Tensor, weight: QuantisedWeight, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The product of e4m3 codes, scales within it."""
    values = weight.values.view(torch.float8_e4m3fn).t()
    wide = weight.scales[None, :]
    return torch._scaled_mm(codes, values, scales, wide, bias=bias, out_dtype=dtype, use_fast_accum=True)


def _unscaled(codes: Tensor, weight: QuantisedWeight, dtype: torch.dtype) -> Tensor:
    """The product of e4m3 codes [T, K] alone. The library splits columns between programs only where one scale is of
    all: twice as fast for few features as with a scale a row."""
    values = weight.values.view(torch.float8_e4m3fn).t()
    one = _one(codes.device)
    return torch._scaled_mm(codes, values, one, one, out_dtype=dtype, use_fast_accum=True)


@cache
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


@cache
def _stored_columns(columns: int, device: torch.device) -> Tensor:
    """List the column in each stored place."""
    place = torch.arange(columns, device=device)
    return (place & ~15) + 2 * (place >> 2 & 3) + 8 * (place & 1) + (place >> 1 & 1)


def holds_quantised(codes: Tensor, dtype: torch.dtype) -> bool:
    """Decide if products with inputs of the dtype gain from weights that stay quantised."""
    features, columns = codes.shape
    return dtype == torch.bfloat16 and features % 16 == 0 and columns % 16 == 0 and is_hopper(codes.device)


@cache
def is_hopper(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device)[0] == 9


def streams(x: Tensor, features: int, gated: bool) -> bool:
    """Decide if the streamed kernel serves a weight with this number of features. Boxes of scales begin at 16 bytes."""
    fits = 0 < x.shape[0] <= MAX_ROWS and x.dtype == torch.bfloat16 and features % (16 if gated else 8) == 0
    return fits and is_hopper(x.device)


@cache
def default_config(rows: int, features: int, size: int, bits: int, group_bytes: int, gated: bool) -> QuantisedConfig:
    """For `rows` as the kernel rounds them, and a weight with `size` bytes an output.

    Two programs a multiprocessor, with all the tiles under way that fit. Room for more lets the next product begin,
    which pays where programs are short. One alone has the registers that 64 rows of 4 bits take when gated.
    """
    sides = 2 if gated else 1
    programs = triton.cdiv(features // sides, 64)
    few = rows <= 16
    # Of 8 bits two lines a tile halve the waits. Up to 32 rows that pays where outputs alone make many programs.
    wide = bits == 8 and rows == 32 and group_bytes == 0 and (gated or programs > 64)
    lines = 2 if (bits == 8 and few) or wide else 1
    tiles = triton.cdiv(size, LINE.value * lines)
    most = 264 if wide else 528 if bits == 4 and few else 384
    splits = 1
    while not gated and splits < 8 and programs * splits * 2 <= most and tiles >= 6 * splits:
        splits *= 2
    per_sm = 2
    if not gated and programs * splits <= most:
        if programs * splits > 264:
            per_sm = 4 if few else 3
        elif rows <= 32 and tiles * lines < 14 * splits:
            per_sm = 3
    if bits == 4 and rows == 64 and gated:
        per_sm = 1
    tile = lines * (64 * sides * LINE.value + 8 // bits * (rows * 256 + 64 * sides * group_bytes))
    room = (SHARED_BYTES // per_sm - PROGRAM_BYTES) // int(tile)
    return QuantisedConfig(64, lines, max(2, min(room, triton.cdiv(tiles, splits))), splits, per_sm)


@cache
def wide_config(features: int, size: int, gated: bool) -> QuantisedConfig:
    """For MOST_ROWS rows of 8 bits. Two warpgroups a program, since each program reads all of x: twice the outputs are
    half of those reads. One program a multiprocessor has the registers."""
    sides, outputs = (2, 64) if gated else (1, 128)
    programs = triton.cdiv(features // sides, outputs)
    tiles = triton.cdiv(size, LINE.value)
    splits = 1
    while not gated and splits < 8 and programs * splits * 2 <= MULTIPROCESSORS and tiles >= 6 * splits:
        splits *= 2
    tile = LINE.value * (outputs * sides + 2 * MOST_ROWS)
    room = (SHARED_BYTES - PROGRAM_BYTES) // tile
    return QuantisedConfig(outputs, 1, max(2, min(room, triton.cdiv(tiles, splits))), splits, 1)
