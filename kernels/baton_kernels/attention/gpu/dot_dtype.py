"""The dtype in which a kernel multiplies matrices."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from baton_kernels.kv.kv_scales import KV_FP8


def dot_dtype(q: Tensor, kv_pool: Tensor | None = None) -> tl.dtype:
    """q's dtype on a GPU; float16 for a float8 pool, whose elements one instruction converts two at a time.

    Under the interpreter (tensors on the CPU) float32: its bfloat16 products are silently wrong.
    """
    if not q.is_cuda:
        return tl.float32
    if kv_pool is not None and kv_pool.dtype == KV_FP8:
        return tl.float16
    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[q.dtype]
