"""Gates other than silu's on the packed gate/up projection, [T, 2F] = gate [T, F] | up [T, F] → [T, F].

    geglu(gate, up)   = gelu(gate) · up,  gelu(g) = g/2 · (1 + tanh(sqrt(2/π) · (g + 0.044715 · g³)))     (Gemma)
    clamped(gate, up) = g · sigmoid(alpha · g) · (u + 1),  g = min(gate, limit), u = min(max(up, -limit), limit)
                                                                                                          (gpt-oss)

Computed in float32 and rounded once. Bytes: reads 2·T·F and writes T·F elements.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def geglu_reference(gate_up: Tensor) -> Tensor:
    """The formula above, written out."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = (2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)
    return (gate / 2 * (1 + torch.tanh(inner)) * up).to(gate_up.dtype)


def clamped_gate_reference(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """The formula above, written out."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + 1)).to(gate_up.dtype)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu(gate) · up for gate_up [T, 2F], gate first → [T, F]."""
    if gate_up.is_cuda:
        from baton_kernels.dense.gpu.gated_activations import geglu_triton

        return geglu_triton(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return functional.gelu(gate, approximate="tanh").mul_(up).to(gate_up.dtype)


def clamped_gate(gate_up: Tensor, limit: float, alpha: float) -> Tensor:
    """The clamped gate of gate_up [T, 2F], gate first → [T, F]."""
    if gate_up.is_cuda:
        from baton_kernels.dense.gpu.gated_activations import clamped_gate_triton

        return clamped_gate_triton(gate_up, limit, alpha)
    return clamped_gate_reference(gate_up, limit, alpha)
