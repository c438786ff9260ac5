"""Weights with one byte an element, unpacked: e4m3 floats, or signed integers; a scale of the tensor, of each output
channel, of blocks or of groups of columns.

Files of several origins: `quant_method: fp8` (DeepSeek, Qwen, Mistral, as transformers names tensors; the scale is
called `weight_scale_inv` and multiplies nevertheless; or as AutoFP8 names them), `fbgemm_fp8`, `modelopt`, and
`compressed-tensors` (float-quantized, int-quantized, mxfp8-quantized). Scales of activations in a file are not read:
Baton keeps activations in the bits that they have, or scales each row of them by its own greatest value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from baton_wire.models.formats.weight_format import FLOATS, Axis, Shape, TensorAxes, TensorForm


@dataclass(frozen=True, slots=True)
class EightBits:
    """One byte an element; `block` (rows, columns) shares a scale: (0, 0) the tensor, (1, 0) a channel."""

    dtype: Literal["F8_E4M3", "I8"]
    block: tuple[int, int]
    scale_name: str = "weight_scale"
    symmetric: bool = True
    has_input_scale: bool = False
    rounds_inputs: bool = False
    """Integer weights only: activations are signed integers of 8 bits without zero points (W8A8)."""
    scale_dtypes: tuple[str, ...] = FLOATS
    """Dtypes of scales that a file may have; bytes are exponents."""

    @property
    def bits(self) -> int:
        return 8

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        scale = TensorForm(self.scale_shapes(features, columns), self.scale_dtypes)
        forms = {"weight": TensorForm(((features, columns),), (self.dtype,)), self.scale_name: scale}
        if not self.symmetric:
            forms["weight_zero_point"] = TensorForm(scale.shapes, ("I8",))
        if self.has_input_scale:
            name = "activation_scale" if self.scale_name == "weight_scale_inv" else "input_scale"
            forms[name] = TensorForm(((), (1,)), FLOATS, optional=True)
            if self.dtype == "I8":
                forms["input_zero_point"] = TensorForm(((), (1,)), ("I8",), optional=True)
        return forms

    def axes(self) -> Mapping[str, TensorAxes]:
        rows, width = self.block
        scale = TensorAxes(Axis(0, rows) if rows else None, Axis(1, width) if width else None)
        return {"weight": TensorAxes(Axis(0), Axis(1)), self.scale_name: scale, "weight_zero_point": scale}

    def stored_bytes(self, features: int, columns: int) -> int:
        return features * columns + 4 * features * -(-columns // (self.block[1] or columns))

    def groups(self, features: int, columns: int) -> tuple[int, int]:
        """Scales down and across."""
        rows, width = self.block
        return -(-features // (rows or features)), -(-columns // (width or columns))

    def scale_shapes(self, features: int, columns: int) -> tuple[Shape, ...]:
        """Shapes of scales that a file may have."""
        if self.block == (0, 0):
            return (), (1,), (1, 1)
        shape = self.groups(features, columns)
        return (shape, (features,)) if self.block == (1, 0) else (shape,)
