"""A GPU that is only described: kernels are compiled for it on a machine that has none.

Everything lies on torch's device `meta`, which has shapes and no memory. What asks for the GPU is answered from its
description: Triton's driver, and the properties by which kernels choose their tiles. For a process of its own, with
one thread: functions that remember what the GPU is like go on remembering it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

META: Final = torch.device("meta")
_ABSENT: Final = object()


@dataclass(frozen=True, slots=True)
class DescribedGpu:
    name: str
    """As its driver calls it: measured choices go by it."""
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def target(self) -> int:
        """As compilers count: 90 for capability 9.0."""
        return 10 * self.capability[0] + self.capability[1]


GPUS: Final = {
    "h100": DescribedGpu("NVIDIA H100 80GB HBM3", (9, 0), 132),
    "h200": DescribedGpu("NVIDIA H200", (9, 0), 132),
    "a100": DescribedGpu("NVIDIA A100-SXM4-80GB", (8, 0), 108),
}


@contextmanager
def compiling_for(gpu: DescribedGpu) -> Iterator[None]:
    """Within, tensors count as this GPU's, and Triton compiles for it. Nothing can be launched: use
    `compiled_together`."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    target = GPUTarget("cuda", gpu.target, 32)
    stand_in = SimpleNamespace(
        get_current_device=lambda: 0, get_current_stream=lambda device: 0, get_current_target=lambda: target
    )
    with ExitStack() as stack:

        def replace(owner: Any, name: str, value: object) -> None:
            before = vars(owner).get(name, _ABSENT)
            setattr(owner, name, value)
            stack.callback(_restore, owner, name, before)

        replace(driver, "_active", stand_in)
        replace(torch.cuda, "get_device_capability", lambda *device: gpu.capability)
        replace(torch.cuda, "get_device_name", lambda *device: gpu.name)
        properties = SimpleNamespace(multi_processor_count=gpu.multiprocessors)
        replace(torch.cuda, "get_device_properties", lambda *device: properties)
        replace(torch.backends.cuda, "preferred_blas_library", lambda *way: None)
        replace(torch.Tensor, "is_cuda", property(lambda tensor: True))
        replace(torch.Tensor, "pin_memory", lambda tensor: tensor)
        yield


def _restore(owner: Any, name: str, before: object) -> None:
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
