"""Check that weights are finite, by the least and the greatest value of each tensor, computed on the tensor's device.

A GPU answers late, so the host gathers its answers and waits for many at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from baton_engine.model.errors import WeightsError
from baton_engine.model.tensor_headers import TensorHeader
from baton_engine.model.weights import WeightSource

LOOK_BYTES: Final = 1 << 30
"""Weights that are checked at once; copying them to a GPU takes 20 ms at least. Loading a broken file ends early."""


class FiniteWeights:
    """The tensors of `source`, all of which must hold finite numbers. Call `check` when they are read.

    Integers and floats of 8 bits are not checked here: `unpacking` knows their codes.
    """

    def __init__(self, source: WeightSource, look_bytes: int = LOOK_BYTES) -> None:
        self._source, self._look_bytes = source, look_bytes
        self._ends: list[tuple[str, Tensor, Tensor]] = []
        """Least and greatest value of each unchecked tensor, on its device."""
        self._bytes = 0
        """Bytes of the unchecked tensors."""

    @property
    def headers(self) -> Mapping[str, TensorHeader]:
        return self._source.headers

    def read(self, name: str) -> Tensor:
        """Read a tensor. Raises WeightsError about an earlier tensor or about this one."""
        tensor = self._source.read(name)
        if tensor.is_floating_point() and tensor.element_size() > 1:
            # On the stream that the tensor's readers use: its copy is done.
            self._ends.append((name, *torch.aminmax(tensor)))
            self._bytes += tensor.nbytes
            if self._bytes >= self._look_bytes:
                self.check()
        return tensor

    def check(self) -> None:
        """Wait for the device. Raises WeightsError naming the first tensor read that is not finite."""
        unchecked, self._ends, self._bytes = self._ends, [], 0
        if not unchecked:
            return
        ends = torch.stack([end.double() for _, least, greatest in unchecked for end in (least, greatest)]).tolist()
        for (name, _, _), least, greatest in zip(unchecked, ends[::2], ends[1::2], strict=True):
            if not (math.isfinite(least) and math.isfinite(greatest)):
                raise WeightsError(f"tensor {name}: holds an infinity or no number; allowed: finite weights")


def finite(name: str, source: WeightSource) -> Tensor:
    """Read one tensor of a source and check it at once. Raises WeightsError."""
    weights = FiniteWeights(source)
    tensor = weights.read(name)
    weights.check()
    return tensor
