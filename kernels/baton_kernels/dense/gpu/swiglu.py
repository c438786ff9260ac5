"""SwiGLU in Triton: one tile of one row a program."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.launching.dependent_launch import after_previous, chain

BLOCK = 1024


@triton.jit
def _swiglu_kernel(gate_up_ptr, out_ptr, F, BLOCK: tl.constexpr, CHAINED: tl.constexpr):
    after_previous(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < F
    gate = tl.load(gate_up_ptr + row * 2 * F + column, mask=inside, other=0.0)  # [BLOCK] of [F]
    up = tl.load(gate_up_ptr + row * 2 * F + F + column, mask=inside, other=0.0)  # [BLOCK] of [F]
    gate32 = gate.to(tl.float32)
    silu = (gate32 / (1.0 + tl.exp(-gate32))).to(gate.dtype)
    tl.store(out_ptr + row * F + column, (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def swiglu_triton(gate_up: Tensor) -> Tensor:
    """As `baton_kernels.dense.swiglu.swiglu`; gate_up contiguous."""
    rows, double = gate_up.shape
    out = torch.empty(rows, double // 2, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        launch = chain(gate_up)
        block = min(BLOCK, triton.next_power_of_2(double // 2))
        _swiglu_kernel[(rows, triton.cdiv(double // 2, block))](
            gate_up, out, double // 2, block, bool(launch), **launch
        )
    return out
