"""Kernels for a Hopper GPU that run on a CPU, slowly: compiled by Triton, run by `ptx_machine.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from baton_testing.kernels.ptx_machine import PtxMachine


@contextmanager
def kernels_on_a_cpu() -> Iterator[None]:
    """Within, kernels are compiled for a Hopper GPU and run by this machine on tensors of the CPU, all contiguous and
    given in the kernel's order. For a process of its own, where Triton interprets nothing."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    target = GPUTarget("cuda", 90, 32)
    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0, get_current_stream=lambda device: 0, get_current_target=lambda: target
        )
    )
    kernels: Any = JITFunction
    compile_only = kernels.run

    def run(kernel: Any, *arguments: Any, grid: Sequence[int], warmup: bool, **options: Any) -> None:
        compiled = compile_only(kernel, *arguments, grid=grid, warmup=True, **options)
        signature = compiled.src.signature
        given = [
            value for name, value in zip(kernel.arg_names, arguments, strict=True) if signature[name] != "constexpr"
        ]
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        parameters = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in given]
        PtxMachine(compiled.asm["ptx"], compiled.metadata.num_warps, tensors, [*parameters, 0, 0]).run(grid)

    kernels.run = run
    try:
        yield
    finally:
        kernels.run = compile_only
