"""Which way a quantised linear layer goes on a GPU: streamed as it is stored (Gluon, Hopper), or brought back first."""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor

from baton_kernels.gpu.streamed_quantised import LINE, MAX_ROWS, QuantisedConfig, streamed_quantised, x_rows
from baton_kernels.linear import linear
from baton_kernels.quantised_weight import QuantisedWeight, dequantise

SHARED_BYTES = 228 * 1024
"""Of a multiprocessor."""
PROGRAM_BYTES = 3584
"""Of them, a program's beside its tiles."""


def quantised_linear_cuda(x: Tensor, weight: QuantisedWeight, bias: Tensor | None, gated: bool) -> Tensor:
    """As `baton_kernels.quantised_linear.quantised_linear`."""
    features, size = weight.values.shape
    if streams(x, features, gated):
        groups = (t for t in (weight.scales, weight.zeros) if t is not None and t.dim() == 2)
        group_bytes = sum(t.element_size() for t in groups)
        config = default_config(x_rows(x.shape[0]), features, size, weight.bits, group_bytes, gated)
        return streamed_quantised(x, weight, bias, config, gated)
    return linear(x, dequantise(weight, x.dtype), bias, gated)


def streams(x: Tensor, features: int, gated: bool) -> bool:
    """Whether the streamed kernel serves a weight of so many features. Boxes of scales begin at 16 bytes."""
    fits = 0 < x.shape[0] <= MAX_ROWS and x.dtype == torch.bfloat16 and features % (16 if gated else 8) == 0
    return fits and torch.cuda.get_device_capability(x.device)[0] == 9


@cache
def default_config(rows: int, features: int, size: int, bits: int, group_bytes: int, gated: bool) -> QuantisedConfig:
    """For `rows` as the kernel rounds them, and a weight with `size` bytes an output.

    Two programs a multiprocessor, with all the tiles under way that fit. Room for more lets the next product begin,
    which pays where programs are short. One alone has the registers that 64 rows of 4 bits take when gated.
    """
    sides = 2 if gated else 1
    programs = triton.cdiv(features // sides, 64)
    few = rows <= 16
    lines = 2 if bits == 8 and few else 1
    tiles = triton.cdiv(size, LINE.value * lines)
    most = 528 if bits == 4 and few else 384
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
