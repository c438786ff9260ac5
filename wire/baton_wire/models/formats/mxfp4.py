"""Four-bit floats: e2m1 in blocks of 32 columns with a power of two each (OCP MX 1.0).

Experts of gpt-oss in stacks, and linear layers as compressed-tensors packs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_wire.models.formats.packed_integers import groups_of
from baton_wire.models.formats.weight_format import EXPONENTS, Axis, TensorAxes, TensorForm

BLOCK: Final = 32
"""Columns that share a scale."""


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """The format of a stack of experts: `NAME_blocks`, two values a byte, the lower first, and `NAME_scales`, exponents
    + 127."""

    def tensors(self, count: int, features: int, columns: int) -> Mapping[str, TensorForm]:
        """By the ends of their names. Raises ValueError for columns that do not divide into blocks."""
        if columns % BLOCK:
            raise ValueError(f"blocks: {columns} columns do not divide into blocks of {BLOCK}")
        blocks = columns // BLOCK
        return {
            "_blocks": TensorForm(((count, features, blocks, BLOCK // 2),), ("U8",)),
            "_scales": TensorForm(((count, features, blocks),), ("U8",)),
        }

    def axes(self) -> Mapping[str, TensorAxes]:
        """The axes by the ends of the tensors' names."""
        axes = TensorAxes(Axis(1), Axis(2, BLOCK))
        return {"_blocks": axes, "_scales": axes}

    def stored_bytes(self, features: int, columns: int) -> int:
        """Bytes of one expert."""
        return features * columns * (BLOCK // 2 + 1) // BLOCK


@dataclass(frozen=True, slots=True)
class PackedFloats:
    """compressed-tensors' mxfp4-pack-quantized: two values a byte, the lower first. Held as e4m3, which has them."""

    @property
    def bits(self) -> int:
        return 4

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        groups = groups_of(columns, BLOCK)
        return {
            "weight_packed": TensorForm(((features, columns // 2),), ("U8",)),
            "weight_scale": TensorForm(((features, groups),), EXPONENTS),
        }

    def axes(self) -> Mapping[str, TensorAxes]:
        return {"weight_packed": TensorAxes(Axis(0), Axis(1, 2)), "weight_scale": TensorAxes(Axis(0), Axis(1, BLOCK))}

    def stored_bytes(self, features: int, columns: int) -> int:
        return features * (columns + 4 * groups_of(columns, BLOCK))
