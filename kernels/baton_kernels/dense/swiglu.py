"""SwiGLU on the packed gate/up projection.

    y = silu(gate) * up,  silu(g) = g / (1 + exp(-g)),  gate_up [T, 2F] = gate [T, F] | up [T, F]

silu is computed in float32 and rounded to the input's dtype before the product, as the Hugging Face models do.
Bytes: reads 2·T·F and writes T·F elements.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """The formula above, written out. gate_up [T, 2F] → [T, F] in the input's dtype."""
    gate, up = gate_up.chunk(2, dim=-1)
    gate32 = gate.float()
    return (gate32 * torch.sigmoid(gate32)).to(gate_up.dtype) * up


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [T, 2F], gate first → [T, F]."""
    if gate_up.is_cuda:
        from baton_kernels.dense.gpu.swiglu import swiglu_triton

        return swiglu_triton(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
