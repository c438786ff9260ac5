"""Which way a linear layer goes on a GPU: streamed (Gluon), cuBLAS or cuBLASLt, by shape and rows.

Measured choices lie in `measured/<gpu>.json` under "linear": for each "NxK" ("NxK gated") a list of [up to rows, way,
…] ascending; what is not listed goes by `default_config`. The streamed kernel is used while a graph is recorded only:
its launch costs the host more than a library call, a replay nothing.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
from torch import Tensor
from torch.nn import functional

from baton_kernels.dense.gpu.pipeline import SHARED_BYTES
from baton_kernels.dense.gpu.streamed_linear import MAX_ROWS, StreamedConfig, streamed_linear
from baton_kernels.dense.gpu.tuned import tuned
from baton_kernels.dense.swiglu import swiglu

LIBRARIES = ("cublas", "cublaslt")
Way = StreamedConfig | str
"""A library's name, or the streamed kernel's configuration."""


def linear_cuda(x: Tensor, weight: Tensor, bias: Tensor | None, gated: bool, recorded: bool) -> Tensor:
    """As `baton_kernels.dense.linear.linear`. `recorded`: in a graph, or to prepare for it."""
    way = choose(x.shape[0], weight.shape[0], weight.shape[1], x.dtype, gated, x.device.index, recorded)
    if isinstance(way, StreamedConfig):
        return streamed_linear(x, weight, bias, way, gated)
    if way != "cublas":
        torch.backends.cuda.preferred_blas_library(way)
    y = functional.linear(x, weight, bias)
    if way != "cublas":
        torch.backends.cuda.preferred_blas_library("cublas")
    return swiglu(y) if gated else y


@cache
def choose(rows: int, features: int, columns: int, dtype: torch.dtype, gated: bool, device: int, recorded: bool) -> Way:
    """The way of a product of `rows` rows with a weight [features, columns]."""
    streams = (
        recorded
        and 0 < rows <= MAX_ROWS
        and columns % 8 == 0
        and dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(device)[0] == 9
    )
    if dtype in (torch.bfloat16, torch.float16):
        for up_to, way, *numbers in tuned(device, "linear", f"{features}x{columns}{' gated' if gated else ''}"):
            if rows <= int(up_to) and (streams or way != "streamed"):
                return StreamedConfig(*map(int, numbers)) if way == "streamed" else str(way)
    if not streams or (rows > MAX_ROWS // 2 and not gated):
        return "cublas"
    return default_config(rows, features, columns, gated)


def default_config(rows: int, features: int, columns: int, gated: bool) -> StreamedConfig:
    """Programs for about every multiprocessor, each with all the tiles under way that fit; many small programs share a
    multiprocessor."""
    sides = 2 if gated else 1
    outputs = features // sides
    if rows > 64:
        block_n = 128
    elif gated:
        block_n = 64 if rows > 32 else 32
    else:
        block_n = next((n for n in (128, 64, 32) if triton.cdiv(outputs, n) >= 96), 16)
    panels = next(p for p in (4, 2, 1) if p == 1 or (p * sides * block_n <= 128 and columns >= 128 * p))
    room = SHARED_BYTES if triton.cdiv(outputs, block_n) <= 132 else SHARED_BYTES // 2
    steps = triton.cdiv(columns, 64 * panels)
    fitting = (s for s in range(24, 1, -1) if StreamedConfig(block_n, panels, s).shared_bytes(rows, sides) <= room)
    return StreamedConfig(block_n, panels, max(2, min(steps, next(fitting, 2))))
