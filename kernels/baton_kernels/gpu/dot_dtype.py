"""The dtype in which a kernel multiplies matrices."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor


def dot_dtype(q: Tensor) -> tl.dtype:
    """q's dtype on a GPU. Under the interpreter (tensors on the CPU) float32: its bfloat16 products are silently
    wrong."""
    if not q.is_cuda:
        return tl.float32
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[q.dtype]
