"""y = f(s · x Wᵀ + b) in float32.

    s = 1 / sqrt(mean(x²) + eps) per row (an RMSNorm before the layer, its weight multiplied into W), or 1
    f: as it is; added to what stands there; or silu(first half) · second half

W lies in panels of 64 output features, [in_features][64]; gated: 32 of the gate beside 32 of up. The products of a few
rows with a panel stay in registers until they are finished. About 1 MiB of rows goes through all panels at a time, so
that it stays in the second-level cache.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from baton_kernels.cpu.compiled.emitter import F32, I64, LANES, VECTOR, Kernel, Pointer, Value
from baton_kernels.cpu.compiled.machine_code import Function, compile_kernels, has_wide_registers, suits
from baton_kernels.cpu.compiled.vectors import silu

PANEL: Final = 64
STORE, ADD, GATE = 0, 1, 2

_VECTORS: Final = PANEL // LANES
_SIZES: Final = (6, 4, 2, 1)
"""Rows at a time: 6 × 4 sums and what they need are 29 of AVX-512's 32 registers; the others do what is left."""
_UNROLLED: Final = 4
_INDEPENDENT: Final = 8
"""Sums that have to be open for two multipliers of four cycles."""

_MOST_ROWS: Final = 1_024
_CACHED: Final = 1 << 18
"""Floats of x that go through all panels together."""


def suits_linear(dtype: torch.dtype) -> bool:
    """Whether the compiled kernel multiplies here: with narrower registers the library's products are faster."""
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
        together = max(_SIZES[0], min(_MOST_ROWS, _CACHED // features) // _SIZES[0] * _SIZES[0])
        eps = -1.0 if norm_eps is None else norm_eps
        self._fixed = packed.data_ptr(), count, features, columns, in_panels.data_ptr(), eps, together

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
    (function,) = compile_kernels([_Linear().kernel])
    return function


class _Linear:
    """Writes the kernel."""

    def __init__(self) -> None:
        k = self.kernel = Kernel(
            "linear", x="*float", x_stride=I64, rows=I64, weight="*float", panels=I64, features=I64, columns=I64,
            bias="*float", eps=F32, together=I64, out="*float", out_stride=I64, mode=I64,
        )  # fmt: skip
        self.scales = k.buffer(F32, _MOST_ROWS)
        with k.loop(0, k["rows"], k["together"]) as begin:
            count = k.least(k["rows"] - begin, k["together"])
            self._find_scales(begin, count)
            with k.loop(0, k["panels"]) as panel:
                done = k.constant(0, I64)
                for size in _SIZES:
                    blocks = (count - done) // size
                    with k.loop(0, blocks) as block:
                        row = done + block * size
                        self._finish(panel, begin + row, row, self._products(panel, begin + row, size))
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

    def _products(self, panel: Value, first_row: Value, size: int) -> list[list[Value]]:
        """`size` rows · panel. Few rows alternate between sums, so that they need not wait for their last."""
        k = self.kernel
        weight = k.pointer("weight") + panel * k["features"] * PANEL
        first = k.pointer("x") + first_row * k["x_stride"]
        rows = [first + k["x_stride"] * n for n in range(size)]
        phases = max(1, _INDEPENDENT // (size * _VECTORS))
        zero = k.constant(0.0, VECTOR)
        sums = [[[k.variable(zero) for _ in range(_VECTORS)] for _ in rows] for _ in range(phases)]

        def step(at: Value, phase: int) -> None:
            weights = [(weight + at * PANEL + LANES * n).load(LANES) for n in range(_VECTORS)]
            for row, row_sums in zip(rows, sums[phase], strict=True):
                x = k.splat((row + at).load())
                for total, part in zip(row_sums, weights, strict=True):
                    total.value = k.fma(x, part, total.value)

        whole = k["features"] // _UNROLLED * _UNROLLED
        with k.loop(0, whole, _UNROLLED) as at:
            for n in range(_UNROLLED):
                step(at + n, n % phases)
        with k.loop(whole, k["features"]) as at:
            step(at, 0)
        found = [[total.value for total in row_sums] for row_sums in sums[0]]
        for phase in sums[1:]:
            found = [
                [a + b.value for a, b in zip(one, other, strict=True)] for one, other in zip(found, phase, strict=True)
            ]
        return found

    def _finish(self, panel: Value, first_row: Value, first_scale: Value, products: list[list[Value]]) -> None:
        """Scale, bias and f, into the result."""
        k, mode = self.kernel, self.kernel["mode"]
        column = panel * k.select(mode.equals(GATE), k.constant(PANEL // 2, I64), PANEL)
        masks = [k.first_lanes(k["columns"] - column - LANES * n) for n in range(_VECTORS)]
        first = k.pointer("out") + first_row * k["out_stride"] + column
        targets = [[first + k["out_stride"] * n + LANES * m for m in range(_VECTORS)] for n in range(len(products))]
        scales = [k.splat((self.scales + first_scale + n).load()) for n in range(len(products))]
        bias = k.pointer("bias") + panel * PANEL
        biases = [(bias + LANES * n).load(LANES) for n in range(_VECTORS)]

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
                values, half = scaled(n), _VECTORS // 2
                gated = [silu(k, gate) * up for gate, up in zip(values[:half], values[half:], strict=True)]
                _store(row[:half], masks[:half], gated)


def _store(targets: list[Pointer], masks: list[Value], values: list[Value]) -> None:
    for target, mask, value in zip(targets, masks, values, strict=True):
        target.store_where(mask, value)
