"""Linear layers whose weights have 8 or 4 bits: y = x Wᵀ + b, alone or gated with SwiGLU (`quantised_weight`).

Activations keep their 16 bits, so nothing is lost but what the weights lost. Few rows are bound by the bytes of W: a
Hopper GPU streams them as they are stored (`gpu/streamed_quantised.py`). Everything else multiplies by W brought back
to x's dtype.

Bytes: reads N·K·bits/8 of W, its scales and T·K, writes T·N elements (gated: T·N/2). FLOPs: 2·T·N·K.
"""

from __future__ import annotations

from torch import Tensor

from baton_kernels.linear import linear
from baton_kernels.quantised_weight import QuantisedWeight, dequantise, fp8_scales, int4_weight
from baton_kernels.swiglu import swiglu_reference


def fp8_reference(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None = None, gated: bool = False) -> Tensor:
    """The formula in float32, rounded once before and once after the gate. weight float8_e4m3fn [N, K], scale as in
    `fp8_scales`; x [T, K] → [T, N], or [T, N / 2] when gated."""
    return _reference(x, weight.float() * fp8_scales(scale, *weight.shape), bias, gated)


def int4_reference(
    x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None = None, gated: bool = False
) -> Tensor:
    """The formula in float32. values [N, K] of 0 to 15, scale and zero [N, K / 128]; without zero it is 8."""
    return _reference(x, int4_weight(values, scale, zero), bias, gated)


def quantised_linear(x: Tensor, weight: QuantisedWeight, bias: Tensor | None, gated: bool = False) -> Tensor:
    """x [T, K] contiguous, bias [N] → [T, N], or [T, N / 2] when `gated`, in x's dtype."""
    if x.is_cuda:
        from baton_kernels.gpu.quantised_linear import quantised_linear_cuda

        return quantised_linear_cuda(x, weight, bias, gated)
    return linear(x, dequantise(weight, x.dtype), bias, gated)


def _reference(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    y = x.float() @ weight.t()
    y = (y if bias is None else y + bias.float()).to(x.dtype)
    return swiglu_reference(y) if gated else y
