"""Matrix multiplication by a weight.

A `LinearMethod` decides how a weight is held; what it returns multiplies. Three methods: rows as in the checkpoint
(GPU, where the kernels' op picks the fastest way, and 16-bit types on the CPU); for float32 on the CPU panels for the
compiled kernel where the processor suits it, else transposed, which MKL multiplies up to twice as fast (lab/).
A quantised weight keeps its stored format where the method has a product for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

from baton_engine.memory.host_memory import HugePageArena
from baton_engine.model.formats.stored_weight import StoredWeight
from baton_kernels.dense.linear import linear, pack_linear, packs_linear
from baton_kernels.dense.quantised_linear import (
    pack_panels,
    pack_quantised,
    quantised_linear,
    quantised_product,
    rounded_dtype,
)
from baton_kernels.dense.quantised_weight import QuantisedWeight
from baton_kernels.dense.rms_norm import rms_norm
from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct, plain
from baton_kernels.dense.swiglu import swiglu

PANEL_COLUMNS: Final = 384
"""Width of a column panel: wider ones miss the TLB in packing, narrower ones call MKL too often."""

WHOLE_COLUMNS: Final = 8_192
"""Up to this many output features a weight is one matrix: panels gain nothing."""

ALIASED_COLUMNS: Final = 256
PADDING_COLUMNS: Final = 16
"""Rows whose length is a multiple of ALIASED_COLUMNS fall on few cache sets; padded, they are up to 1.9 × as fast."""


class Projection(Protocol):
    """y = f(x) for x [T, in_features] → [T, out_features], in x's dtype."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """total += y, total [T, out_features]."""
        ...


class ReadsRounded(ABC):
    """A projection that can read rows rounded by the kernel before it, and leave scales to the kernel after it."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, x: Tensor | RoundedRows) -> Tensor: ...

    @abstractmethod
    def product(self, x: Tensor | RoundedRows) -> Tensor | ScaledProduct:
        """The projection of x, whose scales may be left to the next kernel."""

    @abstractmethod
    def rounded_dtype(self, rows: Tensor) -> torch.dtype | None:
        """The dtype to round rows [T, in_features] to; None: leave them."""


def product(projection: Projection, x: Tensor | RoundedRows) -> Tensor | ScaledProduct:
    """projection(x), for a kernel that brings scales which the projection leaves."""
    return projection.product(x) if isinstance(projection, ReadsRounded) else projection(plain(x))


class Linear(Projection, Protocol):
    """y = x Wᵀ + b."""

    def gated(self, x: Tensor) -> Tensor:
        """silu(first half of y) · second half → [T, out_features / 2]."""
        ...


class LinearMethod(Protocol):
    """A way to store weights on a device and multiply by them there."""

    @property
    def reads_norms(self) -> bool:
        """True when a layer can divide its rows by their root mean square itself."""
        ...

    def pack(self, weight: Tensor, bias: Tensor | None, norm_eps: float | None = None, gated: bool = False) -> Linear:
        """Take over weight [out_features, in_features] and bias [out_features], which already have device and dtype.

        norm_eps: the rows come as they are before an RMSNorm, whose weight is in the columns already; only where the
        method reads norms. gated: the layer is called by `gated` alone.
        """
        ...

    def pack_stored(
        self,
        weight: StoredWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
    ) -> Linear | None:
        """Take over a quantised weight for inputs of the dtype. None: hold it in that dtype, by `pack`.

        norm: weight [in_features] and eps of the RMSNorm before the layer, where the method reads norms; here its
        weight is in no columns. gated: as of `pack`.
        """
        ...


@dataclass(frozen=True, slots=True)
class RowLinear:
    """The weight as the checkpoint has it, [out_features, in_features]."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def gated(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias, gated=True)

    def last_features(self, count: int) -> RowLinear:
        """This layer for the last `count` features alone."""
        return RowLinear(self.weight[-count:], None if self.bias is None else self.bias[-count:])

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class QuantisedLinear(ReadsRounded):
    """The weight in its stored format, not dequantised."""

    weight: QuantisedWeight
    bias: Tensor | None

    def __call__(self, x: Tensor | RoundedRows) -> Tensor:
        return quantised_linear(x, self.weight, self.bias)

    def product(self, x: Tensor | RoundedRows) -> Tensor | ScaledProduct:
        return quantised_product(x, self.weight, self.bias)

    def rounded_dtype(self, rows: Tensor) -> torch.dtype | None:
        return rounded_dtype(rows, self.weight, gated=False)

    def gated(self, x: Tensor) -> Tensor:
        return quantised_linear(x, self.weight, self.bias, gated=True)

    def last_features(self, count: int) -> QuantisedLinear:
        """This layer for the last `count` features alone."""
        return QuantisedLinear(self.weight.last_features(count), None if self.bias is None else self.bias[-count:])

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class RowMethod:
    reads_norms = False

    def pack(self, weight: Tensor, bias: Tensor | None, norm_eps: float | None = None, gated: bool = False) -> Linear:
        return RowLinear(weight, bias)

    def pack_stored(
        self,
        weight: StoredWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
    ) -> Linear | None:
        packed = pack_quantised(
            weight.codes,
            weight.bits,
            weight.scales,
            weight.zeros,
            weight.group,
            weight.order,
            dtype,
            weight.rounds_inputs,
        )
        return None if packed is None else QuantisedLinear(packed, bias)


@dataclass(frozen=True, slots=True)
class TransposedLinear:
    """The weight as [in_features, out_features]; rows may be padded."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def gated(self, x: Tensor) -> Tensor:
        return swiglu(self(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.addmm_(x, self.weight)
        if self.bias is not None:
            total.add_(self.bias)


@dataclass(frozen=True, slots=True)
class PanelLinear:
    """Several panels, each [in_features, width] contiguous; widths add up to out_features."""

    panels: tuple[Tensor, ...]
    widths: tuple[int, ...]
    out_features: int
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], self.out_features)
        for panel, part in zip(self.panels, out.split_with_sizes(self.widths, 1), strict=True):
            torch.mm(x, panel, out=part)
        return out if self.bias is None else out.add_(self.bias)

    def gated(self, x: Tensor) -> Tensor:
        return swiglu(self(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class PanelMethod:
    """Transposed weights or panels; those of one model are contiguous in huge pages."""

    reads_norms = False

    def __init__(self) -> None:
        self._arena = HugePageArena()

    def pack(self, weight: Tensor, bias: Tensor | None, norm_eps: float | None = None, gated: bool = False) -> Linear:
        if weight.shape[0] <= WHOLE_COLUMNS:
            return TransposedLinear(self._transpose(weight), bias)
        panels = tuple(map(self._transpose, torch.split(weight, PANEL_COLUMNS)))
        return PanelLinear(panels, tuple(panel.shape[1] for panel in panels), weight.shape[0], bias)

    def pack_stored(
        self,
        weight: StoredWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
    ) -> Linear | None:
        return None

    def _transpose(self, weight: Tensor) -> Tensor:
        out_features, in_features = weight.shape
        padding = 0 if out_features % ALIASED_COLUMNS else PADDING_COLUMNS
        rows = self._arena.empty((in_features, out_features + padding), weight.dtype)
        return rows[:, :out_features].copy_(weight.t())


@dataclass(frozen=True, slots=True)
class StoredPanels:
    """A quantised weight as the compiled kernel reads it. It norms and reorders the input itself."""

    panels: Linear
    """The product, with its columns in the order of the codes."""
    norm: tuple[Tensor, float] | None
    order: Tensor | None
    """int64 [in_features]: the input's column for each of the weight's; None: the same."""

    def __call__(self, x: Tensor) -> Tensor:
        return self.panels(self._ready(x))

    def gated(self, x: Tensor) -> Tensor:
        return self.panels.gated(self._ready(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        self.panels.add_to(total, self._ready(x))

    def _ready(self, x: Tensor) -> Tensor:
        normed = x if self.norm is None else rms_norm(x, *self.norm)
        return normed if self.order is None else normed.index_select(1, self.order)


class CompiledMethod:
    """Panels for the compiled kernel, which also computes norm and gate. They are contiguous in huge pages."""

    reads_norms = True

    def __init__(self) -> None:
        self._arena = HugePageArena()

    def pack(self, weight: Tensor, bias: Tensor | None, norm_eps: float | None = None, gated: bool = False) -> Linear:
        return pack_linear(weight, bias, norm_eps, gated, self._copy)

    def pack_stored(
        self,
        weight: StoredWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        norm: tuple[Tensor, float] | None = None,
        gated: bool = False,
    ) -> Linear | None:
        packed = pack_panels(weight.codes, weight.bits, weight.scales, weight.zeros, weight.group, bias, gated)
        return None if packed is None else StoredPanels(packed, norm, weight.order)

    def _copy(self, panels: Tensor) -> Tensor:
        return self._arena.empty(tuple(panels.shape), panels.dtype).copy_(panels)


def linear_method(dtype: torch.dtype, device: torch.device) -> LinearMethod:
    """The method for a dtype on a device."""
    if device.type == "cpu" and dtype == torch.float32:
        return CompiledMethod() if packs_linear(dtype) else PanelMethod()
    return RowMethod()
