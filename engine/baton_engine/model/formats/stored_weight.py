"""The one form that every quantised weight is unpacked to: codes, scales and zero points. W = scale · (code - zero)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight [features, columns] of 8-bit floats or of integers."""

    codes: Tensor
    """[features, columns], float8_e4m3fn, or uint8 from 0 to 2^bits - 1."""
    bits: int
    scales: Tensor
    """float32 [features, groups]; a group is `group` neighbouring columns of `codes`, the last one may be shorter."""
    zeros: Tensor | None
    """uint8 [features, groups]; None: 0 of floats, half of the range of integers."""
    group: int
    order: Tensor | None = None
    """int64 [columns]: column j of `codes` is column order[j] of the weight; None: the same."""
    rounds_inputs: bool = False
    """True when the checkpoint asks for 8-bit integers to be multiplied with 8-bit activations."""

    def with_features(self, rows: Tensor) -> StoredWeight:
        """The weight with the features `rows` (int64) alone, in that order."""
        zeros = None if self.zeros is None else self.zeros.index_select(0, rows)
        codes = self.codes.view(torch.uint8).index_select(0, rows).view(self.codes.dtype)
        return replace(self, codes=codes, scales=self.scales.index_select(0, rows), zeros=zeros)

    @property
    def is_float(self) -> bool:
        return self.codes.dtype == FP8

    def dequantise(self) -> Tensor:
        """float32 [features, columns], columns in the weight's own order."""
        columns = self.codes.shape[1]
        codes = self.codes.float()
        if self.zeros is not None:
            codes -= _wide(self.zeros.float(), self.group, columns)
        elif not self.is_float:
            codes -= 1 << (self.bits - 1)
        codes *= _wide(self.scales, self.group, columns)
        if self.order is None:
            return codes
        return torch.empty_like(codes).index_copy_(1, self.order, codes)

    def dequantise_by(self, groups: Tensor) -> Tensor:
        """float32 [features, columns] of integers whose columns, which have no order, belong to groups int64
        [columns]."""
        zeros = 1 << (self.bits - 1) if self.zeros is None else self.zeros.float().index_select(1, groups)
        return (self.codes.float() - zeros).mul_(self.scales.index_select(1, groups))


def join_weights(parts: Sequence[StoredWeight]) -> StoredWeight | None:
    """The parts, which read the same input, one below the other. None where they are not stored alike."""
    first = parts[0]
    for part in parts[1:]:
        if (part.codes.dtype, part.bits) != (first.codes.dtype, first.bits) or not _same(part.order, first.order):
            return None
    group = min(part.group for part in parts)
    if any(part.group % group and part.group < part.codes.shape[1] for part in parts):
        return None
    fine = [_regroup(part, group) for part in parts]
    zeros = None
    if any(part.zeros is not None for part in fine):
        zeros = torch.cat([_explicit_zeros(part) for part in fine])
    return replace(
        first,
        codes=torch.cat([part.codes.view(torch.uint8) for part in fine]).view(first.codes.dtype),
        scales=torch.cat([part.scales for part in fine]),
        zeros=zeros,
        group=group,
        rounds_inputs=all(part.rounds_inputs for part in parts),
    )


def _wide(groups: Tensor, group: int, columns: int) -> Tensor:
    """[features, groups] → [features, columns]."""
    if groups.shape[1] == 1:
        return groups.expand(-1, columns)
    return groups.repeat_interleave(group, 1)[:, :columns]


def _regroup(part: StoredWeight, group: int) -> StoredWeight:
    """With a finer group, whose size divides the part's or cuts its only one."""
    if part.group == group:
        return part
    at = torch.arange(0, part.codes.shape[1], group, device=part.scales.device) // part.group
    zeros = None if part.zeros is None else part.zeros.index_select(1, at)
    return replace(part, scales=part.scales.index_select(1, at), zeros=zeros, group=group)


def _explicit_zeros(part: StoredWeight) -> Tensor:
    if part.zeros is not None:
        return part.zeros
    return torch.full(part.scales.shape, 1 << (part.bits - 1), dtype=torch.uint8, device=part.scales.device)


def _same(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None:
        return left is right
    return torch.equal(left, right)
