"""Programmatic dependent launch (Hopper): a kernel starts while the ones before it still run, up to `after_previous`.

Everything that a kernel reads or writes may belong to a kernel before it, so each kernel of a chain calls
`after_previous` before its first access, in every program. A kernel is done only when its own wait is over, so waiting
for the one before is waiting for all. What may come first is arithmetic and reading memory that no kernel writes: the
weights. Letting the next kernel start comes first of all: it takes what the multiprocessors have left.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_previous(CHAINED: tl.constexpr):
    """Let the next kernel start; wait until the kernels before this one are done and their writes are seen."""
    if CHAINED:
        gdc_launch_dependents()
        gdc_wait()


def chain(tensor: Tensor) -> dict[str, bool]:
    """Launch options of a kernel that calls `after_previous(True)`; empty where the tensor's device cannot do it."""
    return {"launch_pdl": True} if tensor.is_cuda and _has_dependent_launch(tensor.device.index) else {}


@cache
def _has_dependent_launch(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= (9, 0)
