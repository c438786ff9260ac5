"""y = f(s · x Wᵀ + b) in float32.

    s = 1 / sqrt(mean(x²) + eps) per row (an RMSNorm before the layer, its weight multiplied into W), or 1
    f: stored; added to the output; or silu(first half) · second half

W lies in panels of 64 output features, [in_features][64]; gated: 32 of the gate next to 32 of up. The products of a few
rows with a panel stay in registers until they are finished. About 1 MiB of rows goes through all panels at a time, so
that it stays in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from baton_kernels.compiled.emitter import F32, I64, LANES, VECTOR, Kernel, Pointer, Value
from baton_kernels.compiled.machine_code import Function, compile_kernels, has_wide_registers, suits
from baton_kernels.compiled.vectors import silu

PANEL: Final = 64
STORE, ADD, GATE = 0, 1, 2

VECTORS: Final = PANEL // LANES
_SIZES: Final = (6, 4, 2, 1)
"""Rows at a time: 6 × 4 sums and what they need are 29 of AVX-512's 32 registers; the others do what is left."""
UNROLLED: Final = 4
_INDEPENDENT: Final = 8
"""Sums that have to be open for two multipliers of four cycles."""

_MOST_ROWS: Final = 1_024
_CACHED: Final = 1 << 18
"""Floats of x that go through all panels together."""


def suits_linear(dtype: torch.dtype) -> bool:
    """Decide if the compiled kernel multiplies here. With narrower registers the library's products are faster."""
    return suits(dtype) and has_wide_registers()


def panels(weight: Tensor, gated: bool) -> Tensor:
    """Weight [out_features, in_features] → [panels, in_features, 64], zeros where nothing is."""
    out_features, in_features = weight.shape
    sides = 2 if gated else 1
    columns, width = out_features // sides, PANEL // sides
    count = -(-columns // width)
    packed = weight.new_zeros(sides, count * width, in_features)
    packed[:, :columns] = weight.view(sides, columns, in_features)
    return packed.view(sides, count, width, in_features).permute(1, 3, 0, 2).reshape(count, in_features, PANEL)


def rows_together(features: int) -> int:
    """How many rows go through all panels at a time."""
    return max(_SIZES[0], min(_MOST_ROWS, _CACHED // features) // _SIZES[0] * _SIZES[0])


class PackedLinear:
    """A weight in panels, as rows are multiplied by it."""

    def __init__(self, packed: Tensor, columns: int, bias: Tensor | None, norm_eps: float | None, gated: bool) -> None:
        """packed: from `panels`; columns: of the result; bias [out_features]; norm_eps: of the norm before, if any."""
        self._columns, self._bias = columns, bias
        count, features, _ = packed.shape
        in_panels = packed.new_zeros(count * PANEL)
        if bias is not None:
            in_panels = panels(bias[:, None], gated)[:, 0].flatten().contiguous()
        self._kept = packed, in_panels
        self._function = _compiled()
        eps = -1.0 if norm_eps is None else norm_eps
        self._fixed = packed.data_ptr(), count, features, columns, in_panels.data_ptr(), eps, rows_together(features)

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, features], rows contiguous → [T, columns]."""
        return self._into(x, x.new_empty(x.shape[0], self._columns), STORE)

    def gated(self, x: Tensor) -> Tensor:
        return self._into(x, x.new_empty(x.shape[0], self._columns), GATE)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += y, total [T, columns], rows contiguous."""
        self._into(x, total, ADD)
        if self._bias is not None:
            total.add_(self._bias)

    def _into(self, x: Tensor, out: Tensor, mode: int) -> Tensor:
        self._function(x.data_ptr(), x.stride(0), x.shape[0], *self._fixed, out.data_ptr(), out.stride(0), mode)
        return out


@lru_cache(maxsize=1)
def _compiled() -> Function:
    (function,) = compile_kernels([LinearKernel().kernel])
    return function


class RowSums:
    """Sums of `size` rows, [size][64]. Few rows alternate between two sets of sums, so that no addition waits for the
    last."""

    def __init__(self, kernel: Kernel, first_row: Value, size: int) -> None:
        k = self._kernel = kernel
        first = k.pointer("x") + first_row * k["x_stride"]
        self._rows = [first + k["x_stride"] * n for n in range(size)]
        zero = k.constant(0.0, VECTOR)
        phases = max(1, _INDEPENDENT // (size * VECTORS))
        self._sums = [[[k.variable(zero) for _ in range(VECTORS)] for _ in self._rows] for _ in range(phases)]
        self.clear()

    def clear(self) -> None:
        zero = self._kernel.constant(0.0, VECTOR)
        for phase in self._sums:
            for row in phase:
                for total in row:
                    total.value = zero

    def add(self, at: Value, weights: list[Value], phase: int) -> None:
        """x[at] · weights of every row."""
        k = self._kernel
        for row, row_sums in zip(self._rows, self._sums[phase % len(self._sums)], strict=True):
            x = k.splat((row + at).load())
            for total, part in zip(row_sums, weights, strict=True):
                total.value = k.fma(x, part, total.value)

    def merged(self) -> list[list[Value]]:
        """Add up the sets of sums."""
        sums = [[total.value for total in row] for row in self._sums[0]]
        for phase in self._sums[1:]:
            sums = [
                [a + b.value for a, b in zip(one, other, strict=True)] for one, other in zip(sums, phase, strict=True)
            ]
        return sums


class LinearKernel:
    """Writer of the kernel. `more`: parameters after those that every form has."""

    def __init__(self, name: str = "linear", weight: str = "*float", **more: str) -> None:
        k = self.kernel = Kernel(
            name, x="*float", x_stride=I64, rows=I64, weight=weight, panels=I64, features=I64, columns=I64,
            bias="*float", eps=F32, together=I64, out="*float", out_stride=I64, mode=I64, **more,
        )  # fmt: skip
        self.scales = k.buffer(F32, _MOST_ROWS)
        with k.loop(0, k["rows"], k["together"]) as begin:
            count = k.least(k["rows"] - begin, k["together"])
            self._find_scales(begin, count)
            with k.loop(0, k["panels"]) as panel:
                self.rows_through(panel, begin, count)

    def rows_through(self, panel: Value, begin: Value, count: Value) -> None:
        """Rows from `begin` on through one panel, into the result."""
        weight = self.kernel.pointer("weight") + panel * self.kernel["features"] * PANEL
        self.blocks(panel, begin, count, lambda first_row, size: self.products(weight, first_row, size))

    def blocks(
        self, panel: Value, begin: Value, count: Value, products: Callable[[Value, int], list[list[Value]]]
    ) -> None:
        """As many rows at a time as the registers hold; `products` of the first row and their number."""
        k, done = self.kernel, self.kernel.constant(0, I64)
        for size in _SIZES:
            blocks = (count - done) // size
            with k.loop(0, blocks) as block:
                row = done + block * size
                self._finish(panel, begin + row, row, products(begin + row, size))
            done = done + blocks * size

    def _find_scales(self, begin: Value, count: Value) -> None:
        k = self.kernel
        with k.loop(0, count) as row:
            (self.scales + row).store(k.constant(1.0, F32))
            with k.when(k["eps"] >= 0.0):
                x = k.pointer("x") + (begin + row) * k["x_stride"]
                squares = k.variable(k.constant(0.0, VECTOR))
                with k.loop(0, k["features"], LANES) as at:
                    part = (x + at).load_where(k.first_lanes(k["features"] - at))
                    squares.value = k.fma(part, part, squares.value)
                mean = k.total(squares.value) / k["features"].to("sitofp", F32)
                (self.scales + row).store(k.constant(1.0, F32) / k.root(mean + k["eps"]))

    def products(self, weight: Pointer, first_row: Value, size: int) -> list[list[Value]]:
        """`size` rows · one panel of floats."""
        k = self.kernel
        sums = RowSums(k, first_row, size)

        def step(at: Value, phase: int) -> None:
            sums.add(at, [(weight + at * PANEL + LANES * n).load(LANES) for n in range(VECTORS)], phase)

        whole = k["features"] // UNROLLED * UNROLLED
        with k.loop(0, whole, UNROLLED) as at:
            for n in range(UNROLLED):
                step(at + n, n)
        with k.loop(whole, k["features"]) as at:
            step(at, 0)
        return sums.merged()

    def _finish(self, panel: Value, first_row: Value, first_scale: Value, products: list[list[Value]]) -> None:
        """Scale, bias and f, into the result."""
        k, mode = self.kernel, self.kernel["mode"]
        column = panel * k.select(mode.equals(GATE), k.constant(PANEL // 2, I64), PANEL)
        masks = [k.first_lanes(k["columns"] - column - LANES * n) for n in range(VECTORS)]
        first = k.pointer("out") + first_row * k["out_stride"] + column
        targets = [[first + k["out_stride"] * n + LANES * m for m in range(VECTORS)] for n in range(len(products))]
        scales = [k.splat((self.scales + first_scale + n).load()) for n in range(len(products))]
        bias = k.pointer("bias") + panel * PANEL
        biases = [(bias + LANES * n).load(LANES) for n in range(VECTORS)]

        def scaled(n: int) -> list[Value]:
            return [k.fma(product, scales[n], one) for product, one in zip(products[n], biases, strict=True)]

        with k.when(mode.equals(STORE)):
            for n, row in enumerate(targets):
                _store(row, masks, scaled(n))
        with k.when(mode.equals(ADD)):
            for n, row in enumerate(targets):
                there = [target.load_where(mask) for target, mask in zip(row, masks, strict=True)]
                _store(row, masks, [k.fma(p, scales[n], t) for p, t in zip(products[n], there, strict=True)])
        with k.when(mode.equals(GATE)):
            for n, row in enumerate(targets):
                values, half = scaled(n), VECTORS // 2
                gated = [silu(k, gate) * up for gate, up in zip(values[:half], values[half:], strict=True)]
                _store(row[:half], masks[:half], gated)


def _store(targets: list[Pointer], masks: list[Value], values: list[Value]) -> None:
    for target, mask, value in zip(targets, masks, values, strict=True):
        target.store_where(mask, value)
