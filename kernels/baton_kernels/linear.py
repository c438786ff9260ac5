"""A linear layer on a GPU: y = x Wᵀ + b, alone or gated: silu(first half of y) · second half.

Few rows are bound by the bytes of W, many by the arithmetic; which library or kernel is fastest depends on the shape
(`gpu/linear.py`). The CPU has its own packed forms in the engine.

Bytes: reads N·K of W and T·K, writes T·N elements (gated: T·N/2). FLOPs: 2·T·N·K.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor
from torch.nn import functional

from baton_kernels.swiglu import swiglu, swiglu_reference


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Tensor:
    """The formula above in float32, rounded once before and once after the gate. x [T, K], weight [N, K]."""
    y = x.float() @ weight.float().t()
    y = (y if bias is None else y + bias.float()).to(x.dtype)
    return swiglu_reference(y) if gated else y


@contextmanager
def recording() -> Iterator[None]:
    """Linear layers of GPU steps within are recorded in a graph, or run to prepare for it. Needs a GPU."""
    from baton_kernels.gpu import linear as gpu

    with gpu.recording():
        yield


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Tensor:
    """x [T, K] contiguous, weight [N, K], bias [N] → [T, N], or [T, N / 2] when `gated`, in x's dtype."""
    if x.is_cuda:
        from baton_kernels.gpu.linear import linear_cuda

        return linear_cuda(x, weight, bias, gated)
    y = functional.linear(x, weight, bias)
    return swiglu(y) if gated else y
