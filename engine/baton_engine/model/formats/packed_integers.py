"""Integers of 4 or 8 bits packed into words of 32: compressed-tensors (pack-quantized), GPTQ and AWQ.

| | words along | scales | zero points |
|---|---|---|---|
| compressed-tensors | columns, a row a feature | [features, groups] | packed along features, plus half of the range |
| GPTQ | columns, a row a word | [groups, features] | packed along features, one less in version 1 |
| AWQ | features, a row a column | [groups, features] | packed along features; both interleaved |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from baton_engine.model.formats.stored_weight import StoredWeight
from baton_engine.model.formats.weight_format import DEVIATION, FLOATS, TensorForm, checked_scales, unpacked

WORD: Final = 32
AWQ_PLACES: Final = [0, 4, 1, 5, 2, 6, 3, 7]
"""In which place of its word each of 8 neighbouring values stands."""


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """compressed-tensors' pack-quantized: signed values, half of the range added; group 0 is a channel."""

    bits: int
    group: int
    symmetric: bool
    has_order: bool = False
    """Columns belong to the groups that `weight_g_idx` says."""

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        groups = _groups(columns, self.group)
        scales = ((features, groups), (features,)) if groups == 1 else ((features, groups),)
        forms = {
            "weight_packed": TensorForm(((features, -(-columns * self.bits // WORD)),), ("I32",)),
            "weight_scale": TensorForm(scales, FLOATS),
            "weight_shape": TensorForm(((2,),), ("I64", "I32")),
        }
        if not self.symmetric:
            words = -(-features * self.bits // WORD)
            forms["weight_zero_point"] = TensorForm(((words, groups),), ("I32",))
        if self.has_order:
            forms["weight_g_idx"] = TensorForm(((columns,),), ("I32",))
        return forms

    def read(self, parts: Mapping[str, Tensor], features: int, columns: int) -> StoredWeight:
        said = parts["weight_shape"].tolist()
        if said != [features, columns]:
            raise ValueError(f"weight_shape: says {said}; the config asks for {[features, columns]}")
        codes = unpacked(parts["weight_packed"], self.bits)[:, :columns]
        scales = checked_scales("weight_scale", parts["weight_scale"]).reshape(features, -1).contiguous()
        zeros = None
        if not self.symmetric:
            zeros = unpacked(parts["weight_zero_point"].t(), self.bits)[:, :features].t().contiguous()
        group = self.group or columns
        order = _order("weight_g_idx", parts["weight_g_idx"], columns, group) if self.has_order else None
        return _sorted(codes, StoredWeight(codes, self.bits, scales, zeros, group, order))

    def drawn(self, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return _drawn(self, features, columns, generator)

    def stored_bytes(self, features: int, columns: int) -> int:
        return _stored_bytes(self.bits, self.group, features, columns)


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ's qweight, qzeros, scales and g_idx; group 0 is a channel."""

    bits: int
    group: int
    lesser_zeros: bool
    """Files of version 1 hold zero points less one."""

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        groups, many = _groups(columns, self.group), WORD // self.bits
        if columns % many or features % many:
            raise ValueError(f"qweight: packs {many} values a word; {features} x {columns} does not divide by it")
        return {
            "qweight": TensorForm(((columns // many, features),), ("I32",)),
            "qzeros": TensorForm(((groups, features // many),), ("I32",)),
            "scales": TensorForm(((groups, features),), FLOATS),
            "g_idx": TensorForm(((columns,),), ("I32",), optional=True),
        }

    def read(self, parts: Mapping[str, Tensor], features: int, columns: int) -> StoredWeight:
        codes = unpacked(parts["qweight"].t(), self.bits)
        zeros = unpacked(parts["qzeros"], self.bits).t()
        if self.lesser_zeros:
            if int(zeros.max()) == (1 << self.bits) - 1:
                raise ValueError(
                    f"qzeros: holds a zero point of {1 << self.bits}; allowed: 0 to {(1 << self.bits) - 1}"
                )
            zeros = zeros + 1
        scales = checked_scales("scales", parts["scales"]).t().contiguous()
        group = self.group or columns
        order = _order("g_idx", parts["g_idx"], columns, group) if "g_idx" in parts else None
        return _sorted(codes, StoredWeight(codes, self.bits, scales, zeros.contiguous(), group, order))

    def drawn(self, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return _drawn(self, features, columns, generator)

    def stored_bytes(self, features: int, columns: int) -> int:
        return _stored_bytes(self.bits, self.group, features, columns)


@dataclass(frozen=True, slots=True)
class Awq:
    """AWQ's qweight, qzeros and scales (version gemm), 4 bits; group 0 is a channel."""

    group: int
    has_zeros: bool

    @property
    def bits(self) -> int:
        return 4

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        groups, many = _groups(columns, self.group), WORD // 4
        if features % many:
            raise ValueError(f"qweight: packs {many} values a word; {features} features do not divide by it")
        forms = {
            "qweight": TensorForm(((columns, features // many),), ("I32",)),
            "scales": TensorForm(((groups, features),), FLOATS),
        }
        if self.has_zeros:
            forms["qzeros"] = TensorForm(((groups, features // many),), ("I32",))
        return forms

    def read(self, parts: Mapping[str, Tensor], features: int, columns: int) -> StoredWeight:
        scales = checked_scales("scales", parts["scales"]).t().contiguous()
        zeros = _parted(parts["qzeros"]).t().contiguous() if self.has_zeros else None
        return StoredWeight(_parted(parts["qweight"]).t().contiguous(), 4, scales, zeros, self.group or columns)

    def drawn(self, features: int, columns: int, generator: torch.Generator) -> dict[str, Tensor]:
        return _drawn(self, features, columns, generator)

    def stored_bytes(self, features: int, columns: int) -> int:
        return _stored_bytes(4, self.group, features, columns)


def _order(name: str, groups: Tensor, columns: int, group: int) -> Tensor | None:
    """Columns sorted by the groups that each belongs to. None when they are sorted."""
    sizes = torch.bincount(groups.clamp(0, columns), minlength=_groups(columns, group)).tolist()
    if int(groups.min()) < 0 or sizes != [group] * _groups(columns, group):
        raise ValueError(f"{name}: places columns in groups of other sizes than the config's {group}")
    order = torch.argsort(groups, stable=True)
    return None if torch.equal(order, torch.arange(columns, device=order.device)) else order


def _sorted(codes: Tensor, weight: StoredWeight) -> StoredWeight:
    """With the codes' columns in the weight's order."""
    sorted_codes = codes if weight.order is None else codes.index_select(1, weight.order)
    return replace(weight, codes=sorted_codes.contiguous())


def _parted(words: Tensor) -> Tensor:
    """AWQ's words [rows, n] → uint8 [rows, 8 n]."""
    return unpacked(words, 4).view(words.shape[0], -1, 8)[:, :, AWQ_PLACES].flatten(1)


def _drawn(
    stored: PackedIntegers | Gptq | Awq, features: int, columns: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Uniform codes; each zero point is the middle of the range, which GPTQ's version 1 reads as the next one."""
    device, drawn = generator.device, {}
    for name, form in stored.tensors(features, columns).items():
        shape, middle = form.shapes[0], 1 << (stored.bits - 1)
        if name == "weight_shape":
            drawn[name] = torch.tensor([features, columns])
        elif name.endswith("g_idx"):
            drawn[name] = torch.arange(columns, dtype=torch.int32, device=device) // (stored.group or columns)
        elif "I32" not in form.dtypes:
            drawn[name] = torch.full(shape, DEVIATION * 12**0.5 / (1 << stored.bits), device=device)
        elif "zero" in name:
            word = sum(middle << at for at in range(0, WORD, stored.bits))
            drawn[name] = torch.full(shape, word - (1 << WORD), dtype=torch.int32, device=device)
        else:
            drawn[name] = torch.randint(
                -(1 << 31), 1 << 31, shape, generator=generator, dtype=torch.int64, device=device
            ).to(torch.int32)
    return drawn


def _groups(columns: int, group: int) -> int:
    if group and columns % group:
        raise ValueError(f"weight: {columns} columns do not divide into groups of {group}")
    return columns // group if group else 1


def _stored_bytes(bits: int, group: int, features: int, columns: int) -> int:
    return features * columns * bits // 8 + 2 * features * _groups(columns, group)
