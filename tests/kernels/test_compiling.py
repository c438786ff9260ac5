"""Kernels of a start are compiled together, in a process of its own: here they are not interpreted."""

from __future__ import annotations

from pathlib import Path

from baton_testing.processes.prepared import Prepared

PROGRAM = """
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Hopper())
from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.dense.gpu.rms_norm import add_rms_norm_triton, rms_norm_triton

compiled = []
knobs.compilation.listener = lambda **found: compiled.append(found["cache_hit"])
x, weight = torch.zeros(2, 64), torch.ones(64)
for _ in range(2):
    with compiled_together():
        for _ in range(3):
            rms_norm_triton(x, weight, 1e-5)
            add_rms_norm_triton(x, x, weight, 1e-5)
        assert not compiled[2:], compiled
print(len(compiled), sum(compiled))
"""


def test_each_kernel_is_compiled_once_and_none_is_launched(compiler: Prepared, tmp_path: Path) -> None:
    """A launch would fail: there is no GPU."""
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ended = compiler.run_to_end(["-c", PROGRAM], 120, environment)
    assert ended.code == 0, ended.stderr
    assert ended.stdout.split() == ["2", "0"]
