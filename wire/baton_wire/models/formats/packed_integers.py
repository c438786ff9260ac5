"""Integers of 4 or 8 bits packed into words of 32: compressed-tensors (pack-quantized), GPTQ and AWQ.

| | words along | scales | zero points |
|---|---|---|---|
| compressed-tensors | columns, a row a feature | [features, groups] | packed along features, plus half of the range |
| GPTQ | columns, a row a word | [groups, features] | packed along features, one less in version 1 |
| AWQ | features, a row a column | [groups, features] | packed along features; both interleaved |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from baton_wire.models.config_fields import ConfigFields
from baton_wire.models.formats.weight_format import FLOATS, Axis, TensorAxes, TensorForm

WORD: Final = 32
_GROUPS: Final = (16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class PackedIntegers:
    """compressed-tensors' pack-quantized: signed values, half of the range added; group 0 is a channel."""

    bits: int
    group: int
    symmetric: bool
    has_order: bool = False
    """Columns belong to the groups that `weight_g_idx` says."""

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        groups = groups_of(columns, self.group)
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

    def axes(self) -> Mapping[str, TensorAxes]:
        many, groups = WORD // self.bits, _group_axis(1, self.group)
        return {
            "weight_packed": TensorAxes(Axis(0), Axis(1, many)),
            "weight_scale": TensorAxes(Axis(0), groups),
            "weight_zero_point": TensorAxes(Axis(0, many), groups),
            "weight_g_idx": TensorAxes(columns=Axis(0)),
        }

    def stored_bytes(self, features: int, columns: int) -> int:
        return _stored_bytes(self.bits, self.group, features, columns)


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ's qweight, qzeros, scales and g_idx; group 0 is a channel."""

    bits: int
    group: int
    lesser_zeros: bool
    """Files of version 1 hold zero points less one."""
    has_order: bool = False
    """True if columns may belong to other groups than those of their places; `g_idx` says to which."""

    def tensors(self, features: int, columns: int) -> Mapping[str, TensorForm]:
        groups, many = groups_of(columns, self.group), WORD // self.bits
        if columns % many or features % many:
            raise ValueError(f"qweight: packs {many} values a word; {features} x {columns} does not divide by it")
        return {
            "qweight": TensorForm(((columns // many, features),), ("I32",)),
            "qzeros": TensorForm(((groups, features // many),), ("I32",)),
            "scales": TensorForm(((groups, features),), FLOATS),
            "g_idx": TensorForm(((columns,),), ("I32",), optional=groups == 1 or not self.has_order),
        }

    def axes(self) -> Mapping[str, TensorAxes]:
        many, groups = WORD // self.bits, _group_axis(0, self.group)
        return {
            "qweight": TensorAxes(Axis(1), Axis(0, many)),
            "qzeros": TensorAxes(Axis(1, many), groups),
            "scales": TensorAxes(Axis(1), groups),
            "g_idx": TensorAxes(columns=Axis(0)),
        }

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
        groups, many = groups_of(columns, self.group), WORD // 4
        if features % many:
            raise ValueError(f"qweight: packs {many} values a word; {features} features do not divide by it")
        forms = {
            "qweight": TensorForm(((columns, features // many),), ("I32",)),
            "scales": TensorForm(((groups, features),), FLOATS),
        }
        if self.has_zeros:
            forms["qzeros"] = TensorForm(((groups, features // many),), ("I32",))
        return forms

    def axes(self) -> Mapping[str, TensorAxes]:
        many, groups = WORD // 4, _group_axis(0, self.group)
        return {
            "qweight": TensorAxes(Axis(1, many), Axis(0)),
            "qzeros": TensorAxes(Axis(1, many), groups),
            "scales": TensorAxes(Axis(1), groups),
        }

    def stored_bytes(self, features: int, columns: int) -> int:
        return _stored_bytes(4, self.group, features, columns)


def groups_of(columns: int, group: int) -> int:
    """How many there are. Raises ValueError where columns do not divide."""
    if group and columns % group:
        raise ValueError(f"weight: {columns} columns do not divide into groups of {group}")
    return columns // group if group else 1


def _group_axis(number: int, group: int) -> Axis | None:
    """The axis of groups of columns; None: one group has them all."""
    return Axis(number, group) if group else None


def read_group_size(fields: ConfigFields) -> int:
    """0: a channel. Raises ModelConfigError."""
    size = fields.raw("group_size")
    if size == -1:
        return 0
    if size not in _GROUPS or isinstance(size, bool):
        raise fields.error("group_size", f"-1 or one of {', '.join(map(str, _GROUPS))}")
    return fields.integer("group_size")


def _stored_bytes(bits: int, group: int, features: int, columns: int) -> int:
    return features * columns * bits // 8 + 2 * features * groups_of(columns, group)
