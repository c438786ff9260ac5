"""Whether weights are numbers: the least and the greatest value of each tensor, computed where the tensor is.

A GPU answers late: its answers are gathered, and the host waits for many of them at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from baton_engine.model.errors import WeightsError
from baton_engine.model.weights import TensorHeader, WeightSource

LOOK_BYTES: Final = 1 << 30
"""Of weights whose answers are waited for at once; copying them to a GPU takes 20 ms at least. So a broken file is not
loaded to its end."""


class FiniteWeights:
    """The same tensors as `source` has, all of which must hold finite numbers. `check` once they are read.

    Integers and floats of 8 bits are passed over: `unpacking` knows their codes.
    """

    def __init__(self, source: WeightSource, look_bytes: int = LOOK_BYTES) -> None:
        self._source, self._look_bytes = source, look_bytes
        self._ends: list[tuple[str, Tensor, Tensor]] = []
        """Least and greatest value of each tensor that was not looked at, on its device."""
        self._bytes = 0
        """Of those tensors."""

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        return self._source.headers

    def read(self, name: str) -> Tensor:
        """Raises WeightsError, about a tensor that was read before or about this one."""
        tensor = self._source.read(name)
        if tensor.is_floating_point() and tensor.element_size() > 1:
            # On the stream that the tensor's readers use: its copy is done.
            self._ends.append((name, *torch.aminmax(tensor)))
            self._bytes += tensor.nbytes
            if self._bytes >= self._look_bytes:
                self.check()
        return tensor

    def check(self) -> None:
        """Waits for the device. Raises WeightsError naming the first tensor read that holds something else."""
        unseen, self._ends, self._bytes = self._ends, [], 0
        if not unseen:
            return
        ends = torch.stack([end.double() for _, least, greatest in unseen for end in (least, greatest)]).tolist()
        for (name, _, _), least, greatest in zip(unseen, ends[::2], ends[1::2], strict=True):
            if not (math.isfinite(least) and math.isfinite(greatest)):
                raise WeightsError(f"tensor {name}: holds an infinity or no number; allowed: finite weights")


def finite(name: str, source: WeightSource) -> Tensor:
    """One tensor of a source, looked at at once. Raises WeightsError."""
    weights = FiniteWeights(source)
    tensor = weights.read(name)
    weights.check()
    return tensor
