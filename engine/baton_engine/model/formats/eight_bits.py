"""Weights with one byte an element as it is: e4m3 floats, or signed integers; a scale of the tensor, of each output
channel, of blocks or of groups of columns.

Files of two origins: `quant_method: fp8` (DeepSeek and Qwen; the scale is called `weight_scale_inv` and multiplies
nevertheless) and `compressed-tensors` (float-quantized and int-quantized). Scales of activations in a file are not
read: Baton keeps activations in 16 bits, or scales each row of them by its own greatest value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from baton_engine.model.formats.stored_weight import FP8, StoredWeight
from baton_engine.model.formats.weight_format import DEVIATION, FLOATS, Shape, TensorForm, checked_scales

NOT_A_NUMBER = 0x7F
"""Of e4m3 without its sign."""


@dataclass(frozen=True, slots=True)
class EightBits:
    """One byte an element; `block` (rows, columns) shares a scale: (0, 0) the tensor, (1, 0) a channel."""

    dtype: Literal["F8_E4M3", "I8"]
    block: tuple[int, int]
    scale_name: str = "weight_scale"
    symmetric: bool = True
    has_input_scale: bool = False

    @property
    def bits(self) -> int:
        return 8

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        scale = TensorForm(self._scale_shapes(features, columns), FLOATS)
        forms = {"weight": TensorForm(((features, columns),), (self.dtype,)), self.scale_name: scale}
        if not self.symmetric:
            forms["weight_zero_point"] = TensorForm(scale.shapes, ("I8",))
        if self.has_input_scale:
            forms["input_scale"] = TensorForm(((), (1,)), FLOATS, optional=True)
        return forms

    def read(self, parts: Mapping[str, Tensor], features: int, columns: int) -> StoredWeight:
        codes = parts["weight"]
        if self.dtype == "F8_E4M3":
            if bool((codes.view(torch.uint8) & NOT_A_NUMBER == NOT_A_NUMBER).any()):
                raise ValueError("weight: holds values that are no numbers; allowed: finite values of e4m3")
        else:
            codes = _unsigned(codes)
        scales = self._by_feature(checked_scales(self.scale_name, parts[self.scale_name]), features, columns)
        zeros = None
        if not self.symmetric:
            zeros = self._by_feature(_unsigned(parts["weight_zero_point"]), features, columns).contiguous()
        return StoredWeight(codes, 8, scales.contiguous(), zeros, self.block[1] or columns)

    def drawn(self, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        device = generator.device
        normal = torch.randn(features, columns, generator=generator, device=device)
        codes = as_fp8(normal * 100) if self.dtype == "F8_E4M3" else (normal * 32).clamp(-128, 127).to(torch.int8)
        scale = DEVIATION / (100 if self.dtype == "F8_E4M3" else 32)
        scales = torch.full(self._scale_shapes(features, columns)[0], scale, device=device)
        drawn = {"weight": codes, self.scale_name: scales}
        if not self.symmetric:
            drawn["weight_zero_point"] = torch.zeros(scales.shape, dtype=torch.int8, device=device)
        return drawn

    def stored_bytes(self, features: int, columns: int) -> int:
        return features * columns + 4 * features * -(-columns // (self.block[1] or columns))

    def _groups(self, features: int, columns: int) -> tuple[int, int]:
        rows, width = self.block
        return -(-features // (rows or features)), -(-columns // (width or columns))

    def _scale_shapes(self, features: int, columns: int) -> tuple[Shape, ...]:
        if self.block == (0, 0):
            return (), (1,), (1, 1)
        shape = self._groups(features, columns)
        return (shape, (features,)) if self.block == (1, 0) else (shape,)

    def _by_feature(self, values: Tensor, features: int, columns: int) -> Tensor:
        """One row of values for each feature."""
        values = values.reshape(self._groups(features, columns))
        rows = self.block[0] or features
        return values if rows == 1 else values.repeat_interleave(rows, 0)[:features]


def _unsigned(codes: Tensor) -> Tensor:
    """int8 → uint8, 128 more."""
    return (codes.view(torch.uint8) ^ 128).contiguous()


def as_fp8(weight: Tensor) -> Tensor:
    """Round to the nearest e4m3; values beyond ± 448 become ± 448."""
    return weight.clamp(-448, 448).to(FP8)
