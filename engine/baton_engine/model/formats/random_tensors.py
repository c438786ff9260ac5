"""Random tensors of every format, for models without a file: a weight with standard deviation 0.02."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from baton_engine.model.formats.stored_weight import FP8
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.mxfp4 import PackedFloats
from baton_wire.models.formats.packed_integers import WORD, Gptq, PackedIntegers
from baton_wire.models.formats.weight_format import EXPONENTS, Shape, WeightFormat

DEVIATION: Final = 0.02
FP8_DEVIATION: Final = 100
"""Deviation of random e4m3 codes: few are beyond 448."""
INT8_DEVIATION: Final = 32
FP8_EXPONENT: Final = 115
"""2^-12: e4m3 codes then have about the deviation."""
FP4_EXPONENT: Final = 120
"""2^-7: four-bit floats then have it."""


def draw(stored: WeightFormat, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
    """All tensors that the format must have, on the generator's device."""
    if isinstance(stored, EightBits):
        return _eight_bits(stored, features, columns, generator)
    device, drawn = generator.device, {}
    if isinstance(stored, PackedFloats):
        shapes = {name: form.shapes[0] for name, form in stored.tensors(features, columns).items()}
        codes = torch.randint(256, shapes["weight_packed"], generator=generator, dtype=torch.uint8, device=device)
        return {"weight_packed": codes, "weight_scale": _exponents(shapes["weight_scale"], FP4_EXPONENT, device)}
    for name, form in stored.tensors(features, columns).items():
        shape, middle = form.shapes[0], 1 << (stored.bits - 1)
        if form.optional:
            continue
        if name == "weight_shape":
            drawn[name] = torch.tensor([features, columns])
        elif "I32" not in form.dtypes:
            drawn[name] = torch.full(shape, DEVIATION * 12**0.5 / (1 << stored.bits), device=device)
        elif name.endswith("g_idx") and isinstance(stored, PackedIntegers | Gptq):
            drawn[name] = torch.arange(columns, dtype=torch.int32, device=device) // (stored.group or columns)
        elif "zero" in name:
            word = sum(middle << at for at in range(0, WORD, stored.bits))
            drawn[name] = torch.full(shape, word - (1 << WORD), dtype=torch.int32, device=device)
        else:
            words = torch.randint(-(1 << 31), 1 << 31, shape, generator=generator, dtype=torch.int64, device=device)
            drawn[name] = words.to(torch.int32)
    return drawn


def _eight_bits(stored: EightBits, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
    normal = torch.randn(features, columns, generator=generator, device=generator.device)
    if stored.dtype == "F8_E4M3":
        codes, spread = (normal * FP8_DEVIATION).clamp(-448, 448).to(FP8), FP8_DEVIATION
    else:
        codes, spread = (normal * INT8_DEVIATION).clamp(-128, 127).to(torch.int8), INT8_DEVIATION
    shape = stored.scale_shapes(features, columns)[0]
    if stored.scale_dtypes == EXPONENTS:
        scales = _exponents(shape, FP8_EXPONENT, generator.device)
    else:
        scales = torch.full(shape, DEVIATION / spread, device=generator.device)
    drawn = {"weight": codes, stored.scale_name: scales}
    if not stored.symmetric:
        drawn["weight_zero_point"] = torch.zeros(scales.shape, dtype=torch.int8, device=generator.device)
    return drawn


def _exponents(shape: Shape, exponent: int, device: torch.device) -> Tensor:
    """Scales that are powers of two: 2^(exponent - 127)."""
    return torch.full(shape, exponent, dtype=torch.uint8, device=device)
