"""From kernels to functions of this processor. Nothing is kept on disk: a model's kernels compile in half a second."""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from baton_kernels.compiled.emitter import Kernel

Function = Callable[..., None]
"""Takes integers, floats and addresses in the order of the kernel's parameters. Lets other Python threads run."""

_KINDS: Final[dict[str, Any]] = {"i64": ctypes.c_int64, "float": ctypes.c_float}
_ATTRIBUTES: Final = (
    'attributes #0 = { nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" '
    '"reciprocal-estimates"="vec-divf:1" }\n'
)
_engines: list[Any] = []
"""They own the code, which lives as long as the process."""


class _Scratch(threading.local):
    buffer = torch.empty(0, dtype=torch.uint8)


_scratch = _Scratch()


def suits(dtype: torch.dtype) -> bool:
    """Decide if compiled kernels serve here: float32, a processor with AVX2 or AVX-512, one thread for torch too."""
    return dtype == torch.float32 and torch.get_num_threads() == 1 and has_vectors()


def has_vectors() -> bool:
    """Decide if kernels can be compiled here: LLVM is installed, and the processor has AVX2 or AVX-512."""
    return {"avx2", "fma"} <= _features()


def has_wide_registers() -> bool:
    """Decide if one register holds a vector (AVX-512). Otherwise a vector takes two of sixteen."""
    return "avx512f" in _features()


def compile_kernels(kernels: Sequence[Kernel]) -> list[Function]:
    """Machine code of kernels. Call `suits` or `has_vectors` before."""
    llvm = _llvm()
    declared = {line for kernel in kernels for line in kernel.declared.values()}
    module = llvm.parse_assembly("\n".join([*sorted(declared), *(k.text() for k in kernels), _ATTRIBUTES]))
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    tuning = llvm.create_pipeline_tuning_options(speed_level=1)
    tuning.loop_unrolling = tuning.loop_vectorization = tuning.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _engines.append(engine)
    return [
        ctypes.CFUNCTYPE(None, *(_KINDS.get(kind, ctypes.c_void_p) for kind in kernel.parameters.values()))(
            engine.get_function_address(kernel.name)
        )
        for kernel in kernels
    ]


def scratch(size: int) -> int:
    """Address of at least `size` bytes for one call of a kernel: each thread has its own."""
    if _scratch.buffer.numel() < size:
        _scratch.buffer = torch.empty(size, dtype=torch.uint8)
    return _scratch.buffer.data_ptr()


@lru_cache(maxsize=1)
def _features() -> frozenset[str]:
    """List the processor's features; none where LLVM is not installed or the processor is another kind."""
    if platform.machine() != "x86_64":
        return frozenset()
    try:
        llvm = _llvm()
    except ImportError:
        return frozenset()
    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


@lru_cache(maxsize=1)
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm
