"""Arithmetic on vectors that several kernels share."""

from __future__ import annotations

from collections.abc import Sequence

from baton_kernels.compiled.emitter import LANES, VECTOR, Kernel, Value

_LOG2_E = 1.4426950408889634
_ROUNDER = 1.5 * 2**23
"""Added to a float, it leaves the nearest whole number in the lowest bits."""
_COEFFICIENTS = (1.3276444e-3, 9.6755377e-3, 5.5507133e-2, 2.4022120e-1, 6.9314697e-1, 1.0000000716)
"""Coefficients of a polynomial for 2^f, |f| ≤ 1/2, with the least greatest relative error: 7.5e-8."""
_LEAST_EXPONENT = -87.3


def exp(k: Kernel, x: Value) -> Value:
    """e^x of a vector, x ≤ 88, but for 2.5e-7 + 1.4e-8 · |x| of it; 0 where the result would be denormal."""
    log2_e, rounder = k.constant(_LOG2_E, VECTOR), k.constant(_ROUNDER, VECTOR)
    n = k.fma(x, log2_e, rounder)
    f = k.fma(x, log2_e, rounder - n)
    p = k.constant(_COEFFICIENTS[0], VECTOR)
    for coefficient in _COEFFICIENTS[1:]:
        p = k.fma(p, f, k.constant(coefficient, VECTOR))
    bits = p.to("bitcast", "<16 x i32>") + (n.to("bitcast", "<16 x i32>") << 23)
    return k.select(x < _LEAST_EXPONENT, k.constant(0.0, VECTOR), bits.to("bitcast", VECTOR))


def silu(k: Kernel, x: Value) -> Value:
    """x / (1 + e^-x), as exact as `exp`; below -80 it has the size that it has at -80."""
    negated = k.constant(0.0, VECTOR) - x
    below = k.select(negated < 80.0, negated, 80.0)
    return x * k.reciprocal(exp(k, below) + 1.0)


def transpose(k: Kernel, rows: Sequence[Value]) -> list[Value]:
    """16 vectors → 16 vectors: element j of row i becomes element i of row j. A quarter is 4 neighbouring lanes."""

    def interleave(a: Value, b: Value, size: int, half: int) -> Value:
        """Within each quarter: `size` lanes of a's half, as many of b's, and so on."""
        lanes = [half * 2 + n for n in range(2)]
        order = (
            [lane + 16 * side for lane in lanes for side in (0, 1)] if size == 1 else [*lanes, *(n + 16 for n in lanes)]
        )
        return k.shuffle(a, b, [quarter + n for quarter in range(0, LANES, 4) for n in order])

    def quarters(a: Value, b: Value, first: int) -> Value:
        """Quarters `first` and `first` + 2 of a, then of b."""
        return k.shuffle(
            a, b, [4 * (first + 2 * q) + n + 16 * side for side in (0, 1) for q in (0, 1) for n in range(4)]
        )

    groups = []
    for g in range(0, LANES, 4):
        a, b, c, d = rows[g : g + 4]
        pairs = [(interleave(a, b, 1, half), interleave(c, d, 1, half)) for half in (0, 1)]
        groups.append([interleave(x, y, 2, half) for x, y in pairs for half in (0, 1)])
    out: dict[int, Value] = {}
    for j in range(4):  # quarter q of groups[g][j] is column 4q + j of rows 4g … 4g + 3
        for odd in (0, 1):
            low = quarters(groups[0][j], groups[1][j], odd)
            high = quarters(groups[2][j], groups[3][j], odd)
            for q in (0, 1):
                out[4 * (odd + 2 * q) + j] = quarters(low, high, q)
    return [out[row] for row in range(LANES)]
