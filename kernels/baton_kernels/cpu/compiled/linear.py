"""y = f(s · x Wᵀ + b) in float32 on a processor that multiplies tiles of bfloat16 (AMX).

    s = 1 / sqrt(mean(x²) + eps) per row (an RMSNorm before the layer, its weight multiplied into W), or 1
    f: as it is; added to what stands there; or silu(first half) · second half

Few rows are multiplied as they are, by vectors. For many each float32 is written as the sum of three bfloat16, high,
middle and low: 8 + 8 + 8 bits, which is all that it has. Of the nine products the six that are not below 2⁻²⁴ of the
greatest are added up in float32, so that the result is as exact as a float32 product (docs/kernels.md).

W lies in panels of 32 output features, [in_features rounded up to 32][32]; gated: 16 of the gate beside 16 of up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

from baton_kernels.cpu.compiled.emitter import F32, I64, LANES, VECTOR, Kernel, Pointer, Value
from baton_kernels.cpu.compiled.machine_code import Function, compile_kernels, scratch
from baton_kernels.cpu.compiled.vectors import silu

PANEL: Final = 32
STORE, ADD, GATE = 0, 1, 2
_FEW: Final = 64
"""Up to this many rows vectors are faster: tiles need W taken apart first."""

_PARTS: Final = 3
_TILE: Final = 512
_STEP: Final = _PARTS * 2 * _TILE
"""bfloat16 of 32 rows × 32 features, in parts: [part][half][16][32]."""

_MOST_ROWS: Final = 1_024
_CACHED: Final = 3 << 18
"""bfloat16 of rows that are taken apart at a time: they stay in the second-level cache."""

_EIGHT_WHOLE_TILES: Final = bytes([1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8, *[0] * 8])
_CONSTANTS: Final = (
    "@tiles = private constant [64 x i8] [" + ", ".join(f"i8 {byte}" for byte in _EIGHT_WHOLE_TILES) + "], align 64"
)


def panels(weight: Tensor, gated: bool) -> Tensor:
    """Weight [out_features, in_features] → [panels, in_features rounded up, 32], zeros where nothing is."""
    out_features, in_features = weight.shape
    depth = -(-in_features // PANEL) * PANEL
    sides = 2 if gated else 1
    width = PANEL // sides
    count = -(-out_features // PANEL) if not gated else -(-out_features // (2 * width))
    packed = weight.new_zeros(sides, count * width, depth)
    packed[:, : out_features // sides, :in_features] = weight.view(sides, -1, in_features)
    return packed.view(sides, count, width, depth).permute(1, 3, 0, 2).reshape(count, depth, PANEL)


class PackedLinear:
    """A weight in panels."""

    def __init__(self, packed: Tensor, features: int, columns: int, bias: Tensor | None, eps: float | None) -> None:
        """packed: from `panels`; columns: of the result; bias [panels · 32] in the order of the panels, contiguous,
        left out in ADD; eps: that of the norm before, if any."""
        self.columns = columns
        self._weight, self._bias = packed, torch.zeros(packed.shape[0] * PANEL) if bias is None else bias
        self._function = _compiled()
        depth = packed.shape[1]
        self._together = max(128, min(_MOST_ROWS, _CACHED // (_PARTS * depth) // PANEL * PANEL))
        self._scratch_bytes = 2 * (self._together + PANEL) * depth * _PARTS
        self._fixed = (
            packed.data_ptr(), packed.shape[0], features, columns, self._bias.data_ptr(), -1.0 if eps is None else eps
        )  # fmt: skip

    def __call__(self, x: Tensor, out: Tensor, mode: int) -> None:
        """x [T, features], out [T, columns], rows contiguous."""
        parts = scratch(self._scratch_bytes) if x.shape[0] > _FEW else 0
        self._function(
            x.data_ptr(), x.stride(0), x.shape[0], *self._fixed, out.data_ptr(), out.stride(0), mode, parts,
            self._together,
        )  # fmt: skip


@lru_cache(maxsize=1)
def _compiled() -> Function:
    (function,) = compile_kernels([_Linear().kernel], _CONSTANTS)
    return function


class _Linear:
    """Writes the kernel."""

    def __init__(self) -> None:
        k = self.kernel = Kernel(
            "linear", x="*float", x_stride=I64, rows=I64, weight="*float", panels=I64, features=I64, columns=I64,
            bias="*float", eps=F32, out="*float", out_stride=I64, mode=I64, scratch="*i16", together=I64,
        )  # fmt: skip
        self.depth = (k["features"] + (PANEL - 1)) // PANEL * PANEL
        self.product = k.buffer(F32, max(_FEW, PANEL) * PANEL)
        self.scales = k.buffer(F32, _MOST_ROWS)
        with k.when(k["rows"] < _FEW + 1):
            self._few()
        with k.when(k["rows"] > _FEW):
            self._many()

    def _x(self, row: Value) -> Pointer:
        return self.kernel.pointer("x") + row * self.kernel["x_stride"]

    def _find_scales(self, begin: Value, count: Value) -> None:
        k = self.kernel
        with k.loop(0, count) as row:
            (self.scales + row).store(k.constant(1.0, F32))
            with k.when(k["eps"] >= 0.0):
                x, squares = self._x(begin + row), k.variable(k.constant(0.0, VECTOR))
                with k.loop(0, k["features"], LANES) as at:
                    part = (x + at).load_where(k.first_lanes(k["features"] - at))
                    squares.value = k.fma(part, part, squares.value)
                mean = k.total(squares.value) / k["features"].to("sitofp", F32)
                (self.scales + row).store(k.constant(1.0, F32) / k.root(mean + k["eps"]))

    def _finish(self, panel: Value, first_row: Value, count: Value, scales: Pointer | None) -> None:
        """Scale, bias and f for the rows of `product`, whose first is row `first_row` of the result."""
        k, mode = self.kernel, self.kernel["mode"]
        bias = k.pointer("bias") + panel * PANEL
        biases = bias.load(LANES), (bias + LANES).load(LANES)
        column = panel * k.select(mode.equals(GATE), k.constant(LANES, I64), PANEL)
        masks = [k.first_lanes(k["columns"] - column - at) for at in (0, LANES)]

        @contextmanager
        def rows_of(wanted: int) -> Iterator[tuple[list[Value], list[Pointer]]]:
            with k.when(mode.equals(wanted)), k.loop(0, count) as row:
                scale = k.constant(1.0, VECTOR) if scales is None else k.splat((scales + row).load())
                products = [(self.product + row * PANEL + at).load(LANES) for at in (0, LANES)]
                target = k.pointer("out") + (first_row + row) * k["out_stride"] + column
                targets = [target, target + LANES]
                added = (
                    biases
                    if wanted != ADD
                    else [one.load_where(mask) for one, mask in zip(targets, masks, strict=True)]
                )
                yield [k.fma(product, scale, one) for product, one in zip(products, added, strict=True)], targets

        for mode_of_both in (STORE, ADD):
            with rows_of(mode_of_both) as (sums, targets):
                for target, mask, total in zip(targets, masks, sums, strict=True):
                    target.store_where(mask, total)
        with rows_of(GATE) as ((gate, up), targets):
            targets[0].store_where(masks[0], silu(k, gate) * up)

    # Few rows ---------------------------------------------------------------------------------------------------------

    def _few(self) -> None:
        k = self.kernel
        none = k.constant(0, I64)
        self._find_scales(none, k["rows"])
        with k.loop(0, k["panels"]) as panel:
            weight = k.pointer("weight") + panel * self.depth * PANEL
            done = none
            for size in (8, 4, 2, 1):
                blocks = (k["rows"] - done) // size
                with k.loop(0, blocks) as block:
                    self._multiply(weight, done + block * size, size)
                done = done + blocks * size
            self._finish(panel, none, k["rows"], self.scales)

    def _multiply(self, weight: Pointer, first_row: Value, size: int) -> None:
        """`size` rows of `product`; a single row alternates between sums, so that it need not wait for its last."""
        k = self.kernel
        phases, unrolled = max(1, 4 // size), 4
        zero = k.constant(0.0, VECTOR)
        sums = [[[k.variable(zero) for _ in (0, 1)] for _ in range(size)] for _ in range(phases)]
        rows = [self._x(first_row + n) for n in range(size)]

        def step(at: Value, phase: int) -> None:
            halves = (weight + at * PANEL).load(LANES), (weight + at * PANEL + LANES).load(LANES)
            for row, row_sums in zip(rows, sums[phase], strict=True):
                x = k.splat((row + at).load())
                for total, half in zip(row_sums, halves, strict=True):
                    total.value = k.fma(x, half, total.value)

        whole = k["features"] // unrolled * unrolled
        with k.loop(0, whole, unrolled) as at:
            for n in range(unrolled):
                step(at + n, n % phases)
        with k.loop(whole, k["features"]) as at:
            step(at, 0)
        for n in range(size):
            for half in (0, 1):
                total = sums[0][n][half].value
                for phase in range(1, phases):
                    total = total + sums[phase][n][half].value
                (self.product + (first_row + n) * PANEL + LANES * half).store(total)

    # Many rows --------------------------------------------------------------------------------------------------------

    def _many(self) -> None:
        k = self.kernel
        steps = self.depth // PANEL
        w_parts = k.pointer("scratch")
        x_parts = w_parts + steps * _STEP  # [block of 32 rows][step]
        self._tiles("ldtilecfg", "@tiles")
        with k.loop(0, k["rows"], k["together"]) as begin:
            count = k.least(k["rows"] - begin, k["together"])
            self._find_scales(begin, count)
            with k.loop(0, count) as row:
                scale = k.splat((self.scales + row).load())
                with k.loop(0, steps) as step:
                    source, left = self._x(begin + row) + step * PANEL, k["features"] - step * PANEL
                    halves = ((source + at).load_where(k.first_lanes(left - at)) * scale for at in (0, LANES))
                    target = x_parts + (row // PANEL * steps + step) * _STEP + row % PANEL * PANEL
                    for part, bits in enumerate(self._parts(*halves)):
                        (target + part * 2 * _TILE).store(bits)
            with k.loop(0, k["panels"]) as panel:
                self._take_apart(k.pointer("weight") + panel * self.depth * PANEL, w_parts, steps)
                with k.loop(0, count, PANEL) as row:
                    self._block(panel, begin, row, count, x_parts + row // PANEL * steps * _STEP, w_parts, steps)
        self._tiles("tilerelease")

    def _parts(self, low: Value, high: Value) -> Iterator[Value]:
        """Three times 32 bfloat16 whose sum are the 32 floats."""
        k = self.kernel
        for _ in range(_PARTS):
            rounded = k.call("<32 x bfloat>", "llvm.x86.avx512bf16.cvtne2ps2bf16.512", high, low)
            bits = rounded.to("bitcast", "<32 x i16>")
            yield bits
            low, high = (
                rest
                - (k.shuffle(bits, bits, range(at, at + LANES)).to("zext", "<16 x i32>") << 16).to("bitcast", VECTOR)
                for rest, at in ((low, 0), (high, LANES))
            )

    def _take_apart(self, weight: Pointer, parts: Pointer, steps: Value) -> None:
        """A panel as tiles: a row of a tile holds two input features of 16 outputs, side by side."""
        k = self.kernel
        beside = [n // 2 + LANES * (n % 2) for n in range(2 * LANES)]
        with k.loop(0, steps * LANES) as pair:
            source = weight + pair * (2 * PANEL)
            target = parts + pair // LANES * _STEP + pair % LANES * PANEL
            for half in (0, 1):
                one, other = ((source + at + LANES * half).load(LANES) for at in (0, PANEL))
                for part, bits in enumerate(self._parts(one, other)):
                    (target + (2 * part + half) * _TILE).store(k.shuffle(bits, bits, beside))

    def _block(
        self, panel: Value, begin: Value, row: Value, count: Value, x_parts: Pointer, w_parts: Pointer, steps: Value
    ) -> None:
        """32 rows × 32 features of the result; where it is whole and nothing follows, tiles go straight to it."""
        k, mode = self.kernel, self.kernel["mode"]
        out = k.pointer("out") + (begin + row) * k["out_stride"] + panel * PANEL
        bias = k.pointer("bias") + panel * PANEL
        spare = k.least(k.least(count - row, k["columns"] - panel * PANEL) - PANEL, k.constant(GATE - 1, I64) - mode)
        row_bytes, none = k["out_stride"] * 4, k.constant(0, I64)
        with k.when(spare >= 0):
            with k.when(mode.equals(STORE)):
                self._each_tile("tileloadd64", bias, none)
            with k.when(mode.equals(ADD)):
                self._each_tile("tileloadd64", out, row_bytes)
            self._multiply_tiles(x_parts, w_parts, steps)
            self._each_tile("tilestored64", out, row_bytes)
        with k.when(spare < 0):
            for tile in range(4):
                self._tiles("tilezero", tile)
            self._multiply_tiles(x_parts, w_parts, steps)
            self._each_tile("tilestored64", self.product, k.constant(4 * PANEL, I64))
            self._finish(panel, begin + row, k.least(count - row, PANEL), None)

    def _each_tile(self, name: str, base: Pointer, row_bytes: Value) -> None:
        """The result's tiles 0 to 3, by halves of rows and features, from or to rows so many bytes apart."""
        lower = base + row_bytes // 4 * LANES
        for tile, place in enumerate((base, base + LANES, lower, lower + LANES)):
            self._tiles(name, tile, place, row_bytes)

    def _multiply_tiles(self, x_parts: Pointer, w_parts: Pointer, steps: Value) -> None:
        """Add 32 rows × 32 features to tiles 0 to 3. x is in tiles 4 and 5, W in 6 and 7."""
        tile_row = self.kernel.constant(2 * PANEL, I64)
        with self.kernel.loop(0, steps) as step:
            for x_part in range(_PARTS):
                for half in (0, 1):
                    place = x_parts + step * _STEP + (2 * x_part + half) * _TILE
                    self._tiles("tileloadd64", 4 + half, place, tile_row)
                for w_part in range(_PARTS - x_part):
                    for half in (0, 1):
                        place = w_parts + step * _STEP + (2 * w_part + half) * _TILE
                        self._tiles("tileloadd64", 6 + half, place, tile_row)
                    for tile in range(4):
                        self._tiles("tdpbf16ps", tile, 4 + tile // 2, 6 + tile % 2)

    def _tiles(self, name: str, *arguments: int | str | Pointer | Value) -> None:
        """One of AMX's instructions: numbers are tiles."""
        k, values = self.kernel, []
        for given in arguments:
            if isinstance(given, int):
                values.append(Value(k, "i8", str(given)))
            elif isinstance(given, str):
                values.append(Value(k, "ptr", given))
            else:
                values.append(given.address if isinstance(given, Pointer) else given)
        k.call("void", f"llvm.x86.{name}", *values)
