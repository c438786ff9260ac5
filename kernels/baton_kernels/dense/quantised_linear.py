"""Linear layers whose weights have 8 or 4 bits: y = x Wᵀ + b, alone or gated with SwiGLU (`quantised_weight`).

Few rows are bound by the bytes of W. A CPU with AVX-512 reads them as they are stored
(`cpu/compiled_quantised_linear.py`). A Hopper GPU streams them as they are stored, and activations keep their 16 bits
(`gpu/streamed_quantised.py`). Many rows are bound by the arithmetic: with weights in e4m3 activations get 8 bits too,
each row (or 128 columns of it) a scale of its own. So do rows for integers of 8 bits whose checkpoint says that its
activations have 8 (W8A8). Other integers are brought back to 16 bits first.

Bytes: reads N·K·bits/8 of W, its scales and T·K, writes T·N elements (gated: T·N/2). FLOPs: 2·T·N·K.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_kernels.dense.cpu.compiled_quantised_linear import QuantisedPanels
from baton_kernels.dense.linear import linear, packs_linear
from baton_kernels.dense.quantised_weight import (
    GROUP,
    QuantisedWeight,
    dequantise,
    fp8_scales,
    int4_weight,
    pack_fp8,
    pack_int4,
    pack_int8,
)
from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct, plain
from baton_kernels.dense.swiglu import swiglu_reference

INT8_ZERO = 0x80
"""Zero point of unsigned codes that have none: half of their range."""


def pack_quantised(
    codes: Tensor,
    bits: int,
    scales: Tensor,
    zeros: Tensor | None,
    group: int,
    order: Tensor | None,
    dtype: torch.dtype,
    rounds_inputs: bool,
) -> QuantisedWeight | None:
    """A weight of codes [N, K], scales and zeros [N, groups of `group` columns] for inputs [T, K] of the dtype; column
    j of codes belongs to column order[j] of the input; rounds_inputs as in `QuantisedWeight`. None where the device
    multiplies faster by a weight of 16 bits."""
    if not codes.is_cuda:
        return None
    from baton_kernels.dense.gpu.quantised_linear import holds_quantised

    wide = group >= codes.shape[1]
    if not holds_quantised(codes, dtype) or (group % GROUP and not wide):
        return None
    at = torch.arange(0, codes.shape[1], GROUP, device=codes.device) // group
    of_groups = scales[:, 0] if wide else scales.index_select(1, at)
    if codes.dtype == torch.float8_e4m3fn:
        return pack_fp8(codes, of_groups, order)
    if bits == 8 and zeros is None:
        return pack_int8((codes ^ INT8_ZERO).view(torch.int8), of_groups, order, rounds_inputs)
    if bits != 4 or codes.shape[1] % GROUP:
        return None
    fine_zeros = None if zeros is None else zeros.index_select(1, at)
    return pack_int4(codes, scales.index_select(1, at), fine_zeros, order)


def pack_panels(
    codes: Tensor,
    bits: int,
    scales: Tensor,
    zeros: Tensor | None,
    group: int,
    bias: Tensor | None,
    gated: bool,
) -> QuantisedPanels | None:
    """As `pack_quantised`, with columns in the input's order, for float32 rows on a CPU whose compiled kernel reads the
    codes. gated: called by `gated` alone. None where a weight of floats is to be held."""
    if not packs_linear(torch.float32) or bits not in (8, 4):
        return None
    if bits == 4 and (codes.shape[1] % 2 or (group % 2 and group < codes.shape[1])):
        return None
    return QuantisedPanels(codes, bits, scales, zeros, group, bias, gated)


def eight_bit_reference(
    x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The formula in float32, rounded once before and once after the gate. codes [N, K] float8_e4m3fn or int8, scale as
    in `fp8_scales`; x [T, K] → [T, N], or [T, N / 2] when gated."""
    return _reference(x, codes.float() * fp8_scales(scale, *codes.shape), bias, gated)


def int4_reference(
    x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The formula in float32. values [N, K] of 0 to 15, scale and zero [N, K / 128]; without zero it is 8."""
    return _reference(x, int4_weight(values, scale, zero), bias, gated)


def quantised_linear(
    x: Tensor | RoundedRows, weight: QuantisedWeight, bias: Tensor | None, gated: bool = False
) -> Tensor:
    """x [T, K] contiguous, bias [N] → [T, N], or [T, N / 2] when `gated`, in x's dtype."""
    rows = plain(x)
    if weight.order is not None:
        rows = x = rows.index_select(1, weight.order)
    if rows.is_cuda:
        from baton_kernels.dense.gpu.quantised_linear import quantised_linear_cuda

        return quantised_linear_cuda(x, weight, bias, gated)
    return linear(rows, dequantise(weight, rows.dtype), bias, gated)


def quantised_product(x: Tensor | RoundedRows, weight: QuantisedWeight, bias: Tensor | None) -> Tensor | ScaledProduct:
    """The same, not gated; its scales may be left to what reads it."""
    rows = plain(x)
    if weight.order is not None or not rows.is_cuda:
        return quantised_linear(x, weight, bias)
    from baton_kernels.dense.gpu.quantised_linear import quantised_product_cuda

    return quantised_product_cuda(x, weight, bias)


def rounded_dtype(rows: Tensor, weight: QuantisedWeight, gated: bool) -> torch.dtype | None:
    """Dtype of RoundedRows that save the product from rounding such rows [T, K] itself. None: it rounds none, or
    differently."""
    if not rows.is_cuda:
        return None
    from baton_kernels.dense.gpu import quantised_linear as on_gpu

    return on_gpu.rounded_dtype(rows, weight, gated)


def quantised_mlp(
    x: Tensor | RoundedRows,
    gate_up: QuantisedWeight,
    gate_up_bias: Tensor | None,
    down: QuantisedWeight,
    down_bias: Tensor | None,
) -> Tensor:
    """x [T, K] → down of SwiGLU of gate and up, [T, K]. Many rows of 8 bits stay in 8 bits between the two."""
    y = quantised_mlp_product(x, gate_up, gate_up_bias, down, down_bias)
    if not isinstance(y, ScaledProduct):
        return y
    from baton_kernels.dense.gpu.quantised_linear import finished

    return finished(y)


def quantised_mlp_product(
    x: Tensor | RoundedRows,
    gate_up: QuantisedWeight,
    gate_up_bias: Tensor | None,
    down: QuantisedWeight,
    down_bias: Tensor | None,
) -> Tensor | ScaledProduct:
    """The same; the scales of down may be left to what reads it."""
    if plain(x).is_cuda and gate_up.order is None:
        from baton_kernels.dense.gpu.quantised_linear import quantised_mlp_cuda

        y = quantised_mlp_cuda(x, gate_up, gate_up_bias, down, down_bias)
        if y is not None:
            return y
    return quantised_product(quantised_linear(x, gate_up, gate_up_bias, gated=True), down, down_bias)


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    y = x.float() @ weight.t()
    y = (y if bias is None else y + bias.float()).to(x.dtype)
    return swiglu_reference(y) if gated else y
