"""y = f(x Wᵀ + b) in float32, W of 8 or 4 bits: W = scale · (code - zero), one scale for each group of a row's columns.

Codes are integers, or floats of 8 bits (e4m3), which have no zero.

Few rows are bound by the bytes of W. So codes are read as they are stored and become floats in registers; a group's
sum is multiplied by its scale once. Many rows are bound by the arithmetic: there a panel is unpacked once into memory
that the caches hold, and goes through the product of floats.

Panels as in `linear`, [in_features][64] codes of 8 bits from -128 to 127; of 4 bits two features share a byte, the
first in the low half. Scales and zeros are [panels][groups][64] floats.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from baton_kernels.compiled.emitter import I64, LANES, VECTOR, Pointer, Value
from baton_kernels.compiled.machine_code import Function, compile_kernels, scratch
from baton_kernels.dense.cpu.compiled_linear import (
    ADD,
    GATE,
    PANEL,
    STORE,
    UNROLLED,
    VECTORS,
    LinearKernel,
    RowSums,
    panels,
    rows_together,
)

_MANY_ROWS: Final = 24
"""Rows from which a panel is unpacked first."""
_INTEGERS: Final = "<16 x i32>"
_FLOATS: Final = 0
"""The form of e4m3 codes. Other forms are numbers of bits of integers."""


class QuantisedPanels:
    """A quantised weight in panels, as rows are multiplied by it."""

    def __init__(
        self,
        codes: Tensor,
        bits: int,
        scales: Tensor,
        zeros: Tensor | None,
        group: int,
        bias: Tensor | None,
        gated: bool,
    ) -> None:
        """codes uint8 or float8_e4m3fn without NaN [out_features, in_features], in_features and group even of 4 bits;
        scales float32 and zeros uint8 [out_features, groups]; without zeros that of integers is half of their range."""
        out_features, features = codes.shape
        self._columns = out_features // 2 if gated else out_features
        self._bias = bias
        form = _FLOATS if codes.dtype == torch.float8_e4m3fn else bits
        packed = _packed(codes.view(torch.uint8), form, gated)
        in_panels = packed.new_zeros(packed.shape[0] * PANEL, dtype=torch.float32)
        if bias is not None:
            in_panels = panels(bias[:, None], gated)[:, 0].flatten().contiguous()
        offset = 128 if form == 8 else 0
        packed_scales = panels(scales.float(), gated).contiguous()
        packed_zeros = None if zeros is None else panels(zeros.float() - offset, gated).contiguous()
        self._kept = packed, in_panels, packed_scales, packed_zeros
        self._function = _compiled(form, zeros is not None)
        self._scratch = 4 * PANEL * features
        fixed = packed.data_ptr(), packed.shape[0], features, self._columns, in_panels.data_ptr(), -1.0
        self._fixed = *fixed, rows_together(features)
        of_zeros = packed_scales if packed_zeros is None else packed_zeros
        self._groups = packed_scales.data_ptr(), of_zeros.data_ptr(), min(group, features), scales.shape[1]

    def stored_bytes(self) -> int:
        """Count the bytes that a product reads."""
        return sum(part.numel() * part.element_size() for part in self._kept if part is not None)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in_features], rows contiguous → [T, columns]."""
        return self._into(x, x.new_empty(x.shape[0], self._columns), STORE)

    def gated(self, x: Tensor) -> Tensor:
        return self._into(x, x.new_empty(x.shape[0], self._columns), GATE)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += y, total [T, columns], rows contiguous."""
        self._into(x, total, ADD)
        if self._bias is not None:
            total.add_(self._bias)

    def _into(self, x: Tensor, out: Tensor, mode: int) -> Tensor:
        result = out.data_ptr(), out.stride(0), mode
        unpacked = scratch(self._scratch) if x.shape[0] >= _MANY_ROWS else 0
        self._function(x.data_ptr(), x.stride(0), x.shape[0], *self._fixed, *result, *self._groups, unpacked)
        return out


def _packed(codes: Tensor, form: int, gated: bool) -> Tensor:
    """uint8 [out_features, in_features] → [panels, in_features, 64], of 4 bits [panels, in_features / 2, 64]."""
    if form == _FLOATS:
        return panels(codes, gated).contiguous()
    if form == 8:
        return panels((codes ^ 128).view(torch.int8), gated).contiguous()
    by_feature = panels(codes, gated)
    return (by_feature[:, ::2] | by_feature[:, 1::2] << 4).contiguous()


@lru_cache(maxsize=5)
def _compiled(form: int, has_zeros: bool) -> Function:
    (function,) = compile_kernels([_QuantisedKernel(form, has_zeros).kernel])
    return function


class _QuantisedKernel(LinearKernel):
    """Writes the kernel for one form of codes (integers' bits, or `_FLOATS`), with zero points or without."""

    def __init__(self, form: int, has_zeros: bool) -> None:
        self._form, self._has_zeros = form, has_zeros
        more = {"scales": "*float", "zeros": "*float", "group": I64, "groups": I64, "unpacked": "*float"}
        super().__init__(f"linear_{form}_{int(has_zeros)}", weight="*i8", **more)

    def rows_through(self, panel: Value, begin: Value, count: Value) -> None:
        k = self.kernel
        with k.when(k["rows"] < _MANY_ROWS):
            self.blocks(panel, begin, count, lambda first_row, size: self._few(panel, first_row, size))
        with k.when(k["rows"] >= _MANY_ROWS):
            unpacked = k.pointer("unpacked")
            self._unpack(panel, unpacked)
            self.blocks(panel, begin, count, lambda first_row, size: self.products(unpacked, first_row, size))

    def _few(self, panel: Value, first_row: Value, size: int) -> list[list[Value]]:
        """`size` rows · panel, group by group."""
        k = self.kernel
        totals = [[k.variable(k.constant(0.0, VECTOR)) for _ in range(VECTORS)] for _ in range(size)]
        for row in totals:
            for total in row:
                total.value = k.constant(0.0, VECTOR)
        sums = RowSums(k, first_row, size)
        with k.loop(0, k["groups"]) as group:
            sums.clear()
            self._use_each(panel, group, sums.add)
            scales = _vectors(self._of_group("scales", panel, group))
            for row, row_sums in zip(totals, sums.merged(), strict=True):
                for total, part, scale in zip(row, row_sums, scales, strict=True):
                    total.value = k.fma(part, scale, total.value)
        return [[total.value for total in row] for row in totals]

    def _unpack(self, panel: Value, target: Pointer) -> None:
        """A panel of floats, [in_features][64]."""
        k = self.kernel
        with k.loop(0, k["groups"]) as group:
            scales = _vectors(self._of_group("scales", panel, group))

            def keep(at: Value, weights: list[Value], phase: int) -> None:
                for n, (weight, scale) in enumerate(zip(weights, scales, strict=True)):
                    (target + at * PANEL + LANES * n).store(weight * scale)

            self._use_each(panel, group, keep)

    def _use_each(self, panel: Value, group: Value, use: Callable[[Value, list[Value], int], None]) -> None:
        """Call `use` with every feature of a group, its 64 codes less their zeros, and a number that alternates."""
        k = self.kernel
        per_byte = 2 if self._form == 4 else 1
        codes = k.pointer("weight") + panel * (k["features"] // per_byte) * PANEL
        zeros: list[Value] | None = None
        if self._has_zeros:
            zeros = _vectors(self._of_group("zeros", panel, group))
        elif self._form == 4:
            zeros = [k.constant(8.0, VECTOR)] * VECTORS
        first = group * k["group"]
        last = k.least(first + k["group"], k["features"])
        whole = first + (last - first) // UNROLLED * UNROLLED

        def step(at: Value, phase: int) -> None:
            byte = codes + at // per_byte * PANEL
            for place, weights in enumerate(self._floats(byte)):
                less = weights if zeros is None else [w - z for w, z in zip(weights, zeros, strict=True)]
                use(at + place, less, phase + place)

        with k.loop(first, whole, UNROLLED) as at:
            for n in range(0, UNROLLED, per_byte):
                step(at + n, n)
        with k.loop(whole, last, per_byte) as at:
            step(at, 0)

    def _floats(self, byte: Pointer) -> list[list[Value]]:
        """64 codes for each feature that shares these bytes."""
        k = self.kernel
        read = [(byte + LANES * n).load(LANES) for n in range(VECTORS)]
        if self._form == 8:
            return [[codes.to("sext", _INTEGERS).to("sitofp", VECTOR) for codes in read]]
        wide = [codes.to("zext", _INTEGERS) for codes in read]
        if self._form == _FLOATS:
            return [[self._of_e4m3(codes) for codes in wide]]
        low = [k.operation("and", codes, 15) for codes in wide]
        high = [k.operation("lshr", codes, 4) for codes in wide]
        return [[codes.to("sitofp", VECTOR) for codes in half] for half in (low, high)]

    def _of_e4m3(self, byte: Value) -> Value:
        """Sign, 4 bits of exponent and 3 of mantissa, where float32 has them; its exponent counts from 120 lower."""
        k = self.kernel
        sign = k.operation("and", byte, 128) << 24
        size = k.operation("and", byte, 127) << 20
        return k.operation("or", sign, size).to("bitcast", VECTOR) * 2.0**120

    def _of_group(self, parameter: str, panel: Value, group: Value) -> Pointer:
        return self.kernel.pointer(parameter) + (panel * self.kernel["groups"] + group) * PANEL


def _vectors(start: Pointer) -> list[Value]:
    return [(start + LANES * n).load(LANES) for n in range(VECTORS)]
