"""A linear layer: y = x Wᵀ + b, alone or gated: silu(first half of y) · second half.

On a GPU few rows are bound by the bytes of W, many by the arithmetic; which library or kernel is fastest depends on
the shape (`gpu/linear.py`). On a CPU a weight may be packed once for the compiled kernel, which takes the norm before
the layer and the gate along.

Bytes: reads N·K of W and T·K, writes T·N elements (gated: T·N/2). FLOPs: 2·T·N·K.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.dense.cpu.compiled_linear import PackedLinear, panels, suits_linear
from baton_kernels.dense.swiglu import swiglu, swiglu_reference


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Tensor:
    """The formula above in float32, rounded once before and once after the gate. x [T, K], weight [N, K]."""
    y = x.float() @ weight.float().t()
    y = (y if bias is None else y + bias.float()).to(x.dtype)
    return swiglu_reference(y) if gated else y


_recording: ContextVar[bool] = ContextVar("recording", default=False)


@contextmanager
def recording() -> Iterator[None]:
    """Linear layers of GPU steps within, in this thread, are recorded in a graph, or run to prepare for it."""
    before = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(before)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool = False) -> Tensor:
    """x [T, K] contiguous, weight [N, K], bias [N] → [T, N], or [T, N / 2] when `gated`, in x's dtype."""
    if x.is_cuda:
        from baton_kernels.dense.gpu.linear import linear_cuda

        return linear_cuda(x, weight, bias, gated, _recording.get())
    y = functional.linear(x, weight, bias)
    return swiglu(y) if gated else y


def packs_linear(dtype: torch.dtype) -> bool:
    """Decide if weights of a dtype are multiplied fastest on this CPU when packed."""
    return suits_linear(dtype)


def pack_linear(
    weight: Tensor, bias: Tensor | None, norm_eps: float | None, gated: bool, keep: Callable[[Tensor], Tensor]
) -> PackedLinear:
    """The layer of weight [N, K] and bias [N] on the CPU, for `packs_linear` dtypes.

    norm_eps: rows come as they are before an RMSNorm, whose weight is in the columns already. gated: the layer is
    called by `gated` alone. `keep` copies the packed weight to where it stays.
    """
    columns = weight.shape[0] // 2 if gated else weight.shape[0]
    return PackedLinear(keep(panels(weight, gated)), columns, bias, norm_eps, gated)
