"""Compile a GPU's kernels side by side: a worker that starts with an empty cache needs a hundred of them.

Compiling one takes some tenths of a second on one core, most of it outside the interpreter. So the work that will be
done is gone through once without launching a kernel, and what it would have launched is compiled by as many threads as
there are cores. Triton's cache on disk (`TRITON_CACHE_DIR`) keeps all of it for the next start.

Triton has no door for this: `preload` loses the types of tensor descriptors. So two methods of its class of kernels are
replaced meanwhile; `tests/kernels/test_compiling.py` fails when a new version has others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

_ONE_AT_A_TIME = threading.Lock()


@contextmanager
def compiled_together() -> Iterator[None]:
    """Within, kernels are not launched; at the end all that would have been are compiled.

    So results of work within are whatever memory held. Nothing may depend on them, no index above all. Other threads
    must launch nothing meanwhile. Needs Triton.
    """
    from triton.runtime.jit import JITFunction  # not where there is no GPU

    kernels: Any = JITFunction
    run, compiled = kernels.run, kernels._do_compile
    wanted: dict[tuple[Any, str], tuple[Any, ...]] = {}

    def note(kernel: Any, key: str, *rest: Any) -> None:
        _ = kernel.cache_key  # its hash, and that of what it calls: not safe to find in several threads
        wanted[kernel, key] = (key, *rest)
        _known(kernel, rest)[key] = _NOT_COMPILED  # the next launch need not find out how it is compiled

    def unlaunched(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(kernel, *arguments, grid=grid, warmup=True, **options)

    with _ONE_AT_A_TIME:
        kernels.run, kernels._do_compile = unlaunched, note
        try:
            yield
        finally:
            kernels.run, kernels._do_compile = run, compiled
            for (kernel, key), (_, *rest) in wanted.items():
                del _known(kernel, rest)[key]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "compile") as threads:
        for done in [threads.submit(compiled, kernel, *how) for (kernel, _), how in wanted.items()]:
            done.result()


_NOT_COMPILED: Final = object()


def _known(kernel: Any, rest: Sequence[Any]) -> dict[str, object]:
    """Triton's kernels by key, on the device that they are compiled for."""
    _signature, device, *_ = rest
    kernels: dict[str, object] = kernel.device_caches[device][0]
    return kernels
