"""RMSNorm before a linear layer and after the residual addition, in the form that the device computes fastest.

    norm(x) = x / sqrt(mean(x²) + eps) · weight = x / sqrt(|x|² + H·eps) · (weight · sqrt(H))

For float32 on the CPU the factor weight · sqrt(H) is multiplied into the columns of the linear layer that reads the
norm (`scale` of `pack_norm`), and the projection before the norm adds to the residual stream in place: three torch
calls instead of nine. Where that layer's method reads norms it does the division too, and gets the rows as they are.
All forms differ by rounding only. Elsewhere the kernels' fused op is used, nothing is folded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton_engine.collectives.collective import Collective
from baton_engine.model.layers.linear import Projection, ReadsRounded, product
from baton_engine.model.layers.summed import SummedProjection, SummedRounded
from baton_kernels.dense.rms_norm import add_rms_norm, add_rms_norm_rounded, rms_norm
from baton_kernels.dense.rounded_rows import RoundedRows, plain


class RmsNorm(Protocol):
    """Over the last dimension: x [T, H] contiguous → [T, H] in x's dtype, without the factor that was folded away."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def after(
        self, projection: Projection, x: Tensor | RoundedRows, residual: Tensor
    ) -> tuple[Tensor | RoundedRows, Tensor]:
        """(norm(residual + projection(x)), residual + projection(x)). `residual` belongs to the op afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class WeightedRmsNorm:
    """The kernels' op."""

    weight: Tensor  # [H]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def after(self, projection: Projection, x: Tensor | RoundedRows, residual: Tensor) -> tuple[Tensor, Tensor]:
        return _normed_sum(projection, x, residual, self.weight, self.eps)


@dataclass(frozen=True, slots=True)
class RoundingRmsNorm:
    """RMSNorm before a projection that multiplies many rows in 8 bits: it rounds the rows for the projection."""

    weight: Tensor  # [H]
    eps: float
    rounded_dtype: Callable[[Tensor], torch.dtype | None]
    """The projection's `rounded_dtype`."""

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def after(
        self, projection: Projection, x: Tensor | RoundedRows, residual: Tensor
    ) -> tuple[Tensor | RoundedRows, Tensor]:
        codes = self.rounded_dtype(residual)
        if codes is None:
            return _normed_sum(projection, x, residual, self.weight, self.eps)
        return add_rms_norm_rounded(product(projection, x), residual, self.weight, self.eps, codes)


def _normed_sum(
    projection: Projection, x: Tensor | RoundedRows, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the projection, together with its sum over ranks where it has one."""
    if isinstance(projection, SummedProjection | SummedRounded):
        return projection.collective.all_reduce_norm(projection.part(x), residual, weight, eps)
    return add_rms_norm(product(projection, x), residual, weight, eps)


def read_by(norm: RmsNorm, projection: Projection | None) -> RmsNorm:
    """The norm in the form that the projection after it reads best."""
    if isinstance(norm, WeightedRmsNorm) and isinstance(projection, ReadsRounded):
        return RoundingRmsNorm(norm.weight, norm.eps, projection.rounded_dtype)
    return norm


@dataclass(frozen=True, slots=True)
class FoldedRmsNorm:
    """x / sqrt(|x|² + H·eps), float32 on the CPU."""

    floor: Tensor  # []: sqrt(H · eps)

    def __call__(self, x: Tensor) -> Tensor:
        return x.div(torch.linalg.vector_norm(x, 2, -1, True).hypot_(self.floor))

    def after(self, projection: Projection, x: Tensor | RoundedRows, residual: Tensor) -> tuple[Tensor, Tensor]:
        projection.add_to(residual, plain(x))
        return self(residual), residual


@dataclass(frozen=True, slots=True)
class NormedProjection:
    """norm(projection(x)): a projection whose output is normed before it is added to the residual stream."""

    projection: Projection
    norm: WeightedRmsNorm

    def __call__(self, x: Tensor) -> Tensor:
        return self.norm(self.projection(x))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


class DeferredRmsNorm:
    """Rows unchanged: the linear layer that reads them norms them, or they are read without a norm."""

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def after(self, projection: Projection, x: Tensor | RoundedRows, residual: Tensor) -> tuple[Tensor, Tensor]:
        projection.add_to(residual, plain(x))
        return residual, residual


@dataclass(frozen=True, slots=True)
class ScaledProjection:
    """factor · projection(x): a projection of which a fraction is added to the residual stream."""

    projection: Projection
    factor: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.projection(x) * self.factor

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self.projection(x), alpha=self.factor)


@dataclass(frozen=True, slots=True)
class JointlyNormed:
    """Queries, keys and values of a layer: all query heads are normed together, and so are all key heads."""

    projection: Projection
    q_norm: WeightedRmsNorm | None
    """None: the projection has no queries."""
    k_norm: WeightedRmsNorm

    def __call__(self, x: Tensor) -> Tensor:
        qkv, keys = self.projection(x), self.k_norm.weight.shape[0]
        *queries, k, v = torch.split(qkv, [*self._query_widths(), keys, keys], -1)
        normed = [self.q_norm(q.contiguous()) for q in queries if self.q_norm is not None]
        return torch.cat((*normed, self.k_norm(k.contiguous()), v), -1)

    def _query_widths(self) -> list[int]:
        return [] if self.q_norm is None else [self.q_norm.weight.shape[0]]

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class RankedJointNorms:
    """The same where ranks share the heads: their mean squares are averaged. All ranks hold equally many heads, and
    each head is held by equally many ranks."""

    projection: Projection
    q_weight: Tensor | None
    """None: the projection has no queries."""
    k_weight: Tensor
    eps: float
    collective: Collective

    def __call__(self, x: Tensor) -> Tensor:
        weights = [weight for weight in (self.q_weight, self.k_weight) if weight is not None]
        widths = [weight.shape[0] for weight in weights]
        qkv = self.projection(x)
        *heads, v = torch.split(qkv, [*widths, widths[-1]], -1)
        wide = [part.float() for part in heads]
        means = self.collective.all_reduce(torch.stack([part.square().mean(-1) for part in wide], -1))
        scales = means.div(self.collective.share.ranks).add(self.eps).rsqrt().unbind(-1)
        normed = [
            (weight * (part * scale[:, None]).to(x.dtype)).to(x.dtype)
            for weight, part, scale in zip(weights, wide, scales, strict=True)
        ]
        return torch.cat((*normed, v), -1)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        total.add_(self(x))


@dataclass(frozen=True, slots=True)
class PackedNorm:
    norm: RmsNorm
    scale: Tensor | None
    """[H] by which the columns of the reading linear layer must be multiplied; None when there is nothing to fold."""
    deferred_eps: float | None = None
    """Eps of the norm that the reading linear layer computes itself; None: it computes none."""

    def rest(self) -> Callable[[Tensor], Tensor] | None:
        """The part of the norm that the reading linear layer computes; None: it computes none of it."""
        if self.scale is None:
            return None
        if self.deferred_eps is not None:
            return WeightedRmsNorm(self.scale, self.deferred_eps)
        return self.scale.mul


def no_norm() -> PackedNorm:
    """The place of a norm that a family does not have: rows reach the linear layer unchanged."""
    return PackedNorm(DeferredRmsNorm(), None)


def pack_norm(weight: Tensor, eps: float, dtype: torch.dtype, deferred: bool = False) -> PackedNorm:
    """The form for the weight's device and rows of the dtype; `deferred` when the linear layers read norms."""
    if deferred:
        return PackedNorm(DeferredRmsNorm(), weight, eps)
    if weight.device.type != "cpu" or dtype != torch.float32:
        return PackedNorm(WeightedRmsNorm(weight, eps), None)
    size = float(weight.shape[0])
    return PackedNorm(FoldedRmsNorm(torch.tensor((size * eps) ** 0.5)), weight * size**0.5)
