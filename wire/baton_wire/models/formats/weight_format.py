"""The interface of every way to store a quantised weight. Plain values: no torch here.

`unpacking` makes weights of the tensors, `random_tensors` random tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

Shape = tuple[int, ...]
FLOATS: Final = ("F32", "BF16", "F16")
POWERS: Final = "F8_E8M0"
"""A power of two by its exponent + 127, a byte (OCP MX 1.0); 255 is no number."""
EXPONENTS: Final = ("U8", POWERS)
"""The same in files of formats whose bytes are exponents, whatever the dtype is called."""


@dataclass(frozen=True, slots=True)
class TensorForm:
    """Shapes and dtypes that a checkpoint's tensor may have."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    """By their names in safetensors files."""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of a tensor along a weight's features or columns."""

    number: int
    step: int = 1
    """How many neighbouring features or columns share an entry."""


@dataclass(frozen=True, slots=True)
class TensorAxes:
    """The axes of a tensor along its weight's features and columns; None: every entry means all of them."""

    features: Axis | None = None
    columns: Axis | None = None


class WeightFormat(Protocol):
    """One way of storing the weight [features, columns] of a linear layer."""

    @property
    def bits(self) -> int:
        """Bits of a stored element."""
        ...

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        """The tensors by the last part of their names, in place of `weight`. Raises ValueError for sizes that the
        format can't hold."""
        ...

    def axes(self) -> Mapping[str, TensorAxes]:
        """The axes of these tensors; those that are left out have none."""
        ...

    def stored_bytes(self, features: int, columns: int) -> int:
        """Bytes of the weight that a product reads, scales included."""
        ...
