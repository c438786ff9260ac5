"""Gates other than silu's in Triton: one tile of one row a program."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.launching.dependent_launch import after_previous, chain

BLOCK = 1024


@triton.jit
def _gate_kernel(
    gate_up_ptr, out_ptr, F, limit, alpha, CLAMPED: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr
):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    gate = tl.load(gate_up_ptr + row * 2 * F + column, mask=inside, other=0.0).to(tl.float32)  # [BLOCK] of [F]
    up = tl.load(gate_up_ptr + row * 2 * F + F + column, mask=inside, other=0.0).to(tl.float32)  # [BLOCK] of [F]
    # Beyond e^80 nothing is left of the gate.
    if CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        result = gate / (1.0 + tl.exp(tl.minimum(-alpha * gate, 80.0))) * (up + 1.0)
    else:  # tanh(y) = 2 / (1 + exp(-2y)) - 1, so (1 + tanh(y)) / 2 = 1 / (1 + exp(-2y))
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        result = gate / (1.0 + tl.exp(tl.minimum(-2.0 * inner, 80.0))) * up
    tl.store(out_ptr + row * F + column, result.to(out_ptr.dtype.element_ty), mask=inside)


def geglu_triton(gate_up: Tensor) -> Tensor:
    """As `baton_kernels.dense.gated_activations.geglu`; gate_up contiguous."""
    return _launch(gate_up, 0.0, 0.0, clamped=False)


def clamped_gate_triton(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """As `baton_kernels.dense.gated_activations.clamped_gate`; gate_up contiguous."""
    return _launch(gate_up, limit, alpha, clamped=True)


def _launch(gate_up: Tensor, limit: float, alpha: float, clamped: bool) -> Tensor:
    rows, double = gate_up.shape
    out = torch.empty(rows, double // 2, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        launch = chain(gate_up)
        block = min(BLOCK, triton.next_power_of_2(double // 2))
        _gate_kernel[(rows, triton.cdiv(double // 2, block))](
            gate_up, out, double // 2, limit, alpha, clamped, block, bool(launch), **launch
        )
    return out
