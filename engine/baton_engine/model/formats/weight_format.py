"""What every way of storing a quantised weight answers: which tensors there are, and which weight they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from baton_engine.model.errors import WeightsError
from baton_engine.model.formats.stored_weight import StoredWeight

Shape = tuple[int, ...]
DEVIATION: Final = 0.02
"""Of random weights."""
FLOATS: Final = ("F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a checkpoint's tensor may look like."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    """By their names in safetensors files."""
    optional: bool = False


class WeightFormat(Protocol):
    """One way of storing the weight [features, columns] of a linear layer."""

    @property
    def bits(self) -> int:
        """Of a stored element."""
        ...

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        """The tensors by the last part of their names, in place of `weight`. Raises ValueError for sizes that the
        format can't hold."""
        ...

    def read(self, parts: Mapping[str, Tensor], features: int, columns: int) -> StoredWeight:
        """The weight in tensors of the right forms; optional ones may be missing. Raises ValueError, beginning with the
        tensor's name."""
        ...

    def drawn(self, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Random tensors on the generator's device, of a weight with standard deviation 0.02."""
        ...

    def stored_bytes(self, features: int, columns: int) -> int:
        """What a product reads of the weight, scales included."""
        ...


def checked_scales(name: str, scales: Tensor) -> Tensor:
    """In float32. Raises ValueError unless all are finite and above zero."""
    wide = scales.float()
    if not bool(torch.isfinite(wide).all()):
        raise ValueError(f"{name}: holds an infinity or no number; allowed: finite scales above 0")
    if wide.numel() and float(wide.min()) <= 0:
        raise ValueError(f"{name}: holds {float(wide.min()):g}; allowed: finite scales above 0")
    return wide


def unpacked(words: Tensor, bits: int) -> Tensor:
    """int32 words [rows, n] → uint8 codes [rows, n · 32 / bits], the lowest bits first. bits is 4 or 8."""
    as_bytes = words.contiguous().view(torch.uint8)
    if bits == 8:
        return as_bytes
    return torch.stack((as_bytes & 15, as_bytes >> 4), -1).flatten(1)


def named_error(layer: str, error: ValueError) -> WeightsError:
    """The format's error with the whole name of its tensor."""
    return WeightsError(f"tensor {layer}.{error}")
