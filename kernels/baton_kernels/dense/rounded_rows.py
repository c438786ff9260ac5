"""Rows and products that pass between kernels where products have 8 bits on both sides: rows that the kernel before has
rounded, and a product that the next kernel scales.

Both save a kernel: rounding needs a row's greatest value, which a norm's kernel has at hand, and scales are two factors
a value for the kernel that reads the product anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RoundedRows:
    """Rows, and the same in 8 bits."""

    rows: Tensor
    """[T, K] bfloat16."""
    codes: Tensor
    """[T, K] e4m3 or int8, columns in the order of stored weights."""
    scales: Tensor
    """[T, 1] float32."""


@dataclass(frozen=True, slots=True)
class ScaledProduct:
    """values · row_scales · scales in float32, rounded to the dtype of the values."""

    values: Tensor
    """[T, N]."""
    row_scales: Tensor
    """[T, 1] float32."""
    scales: Tensor
    """[N] float32."""

    def product(self) -> Tensor:
        """[T, N]."""
        return (self.values.float() * (self.row_scales * self.scales)).to(self.values.dtype)


def scales_apart(y: Tensor | ScaledProduct) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Values, and the scales that they still need."""
    return (y.values, y.row_scales, y.scales) if isinstance(y, ScaledProduct) else (y, None, None)


def plain(x: Tensor | RoundedRows) -> Tensor:
    return x.rows if isinstance(x, RoundedRows) else x
