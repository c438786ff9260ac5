"""Weights of 8 and 4 bits as a GPU streams them: packing, unpacking, and back to more bits. W = scale · (q - zero).

The forms that the engine's weight formats pack a checkpoint's tensors into:

- float8_e4m3fn with a scale of the tensor, of each output channel, or of each block of 128 x 128;
- signed integers of 8 bits with a scale of each output channel, or of each output and 128 columns;
- 4 bits, 0 to 15, with a bfloat16 scale and a zero point (8 when symmetric) of each output and 128 columns.

Stored order. A thread of the matrix unit's register operand wants columns 2q, 2q + 1, 2q + 8 and 2q + 9 of every 16;
stored, they are its 4 neighbouring bytes. Four bits: 128 bytes hold 256 columns, the first 128 in the low halves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

GROUP = 128
"""Columns, and rows of a block, that share a scale."""
SYMMETRIC_ZERO = 8
"""Zero point of 4 bits that have none."""
_COLUMNS = 16
_STORED = [2 * q + at for q in range(4) for at in (0, 8, 1, 9)]
"""Which of 16 columns stands in each stored place."""


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A packed weight [features, columns]."""

    values: Tensor
    """[features, bytes]: a byte a column, uint8 of e4m3 and int8 of integers; or half a byte, uint8, padded to lines
    of 128."""
    scales: Tensor
    """float32 [features], or of groups [columns / 128, features] in float32 (8 bits) or bfloat16 (4 bits)."""
    zeros: Tensor | None
    """Zero points plus 128, bfloat16 [columns / 128, features]; none of 8 bits or when symmetric."""
    columns: int
    bits: int
    arrived: Tensor
    """int32 [features / 32], 0 between products: programs that share a product count themselves here."""
    blocks: Tensor | None = None
    """float32 [features / 128, columns / 128] where each scale is shared by 128 features: `scales` once more."""
    order: Tensor | None = None
    """int64 [columns]: the input's column for each of the weight's; None: the same."""
    rounds_inputs: bool = False
    """True if many rows are multiplied in 8 bits too: always with e4m3; with integers where the checkpoint says so."""

    @property
    def is_float(self) -> bool:
        """True if the values are e4m3."""
        return self.bits == 8 and self.values.dtype == torch.uint8

    def stored_bytes(self) -> int:
        """Count the bytes that a product reads."""
        tensors = (self.values, self.scales, self.zeros)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def last_features(self, count: int) -> QuantisedWeight:
        """The same for the last `count` features alone, sharing the values."""
        whole_blocks = self.blocks is not None and count % GROUP == 0
        return replace(
            self,
            values=self.values[-count:],
            scales=self.scales[..., -count:].contiguous(),
            zeros=None if self.zeros is None else self.zeros[..., -count:].contiguous(),
            blocks=self.blocks[-(count // GROUP) :] if self.blocks is not None and whole_blocks else None,
            arrived=torch.zeros_like(self.arrived),
        )


def fp8_scales(scale: Tensor, features: int, columns: int) -> Tensor:
    """A scale of the tensor [] or [1], of channels [N] or [N, 1], of groups of columns [N, ⌈K/128⌉], or of blocks
    [⌈N/128⌉, ⌈K/128⌉] → float32 [N, K]."""
    blocks = (-(-features // GROUP), -(-columns // GROUP))
    if tuple(scale.shape) == (features, blocks[1]) and blocks[1] > 1:
        return scale.float().repeat_interleave(GROUP, 1)[:, :columns]
    scale = scale.float()
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(features, columns)
    if tuple(scale.shape) in ((features,), (features, 1)):
        return scale.reshape(features, 1).expand(features, columns)
    if tuple(scale.shape) != blocks:
        allowed = f"one value, {[features]}, {[features, 1]} or {list(blocks)}"
        raise ValueError(f"scale has shape {list(scale.shape)}; a weight {[features, columns]} takes {allowed}")
    wide = scale.repeat_interleave(GROUP, 0)[:features]
    return wide.repeat_interleave(GROUP, 1)[:, :columns]


def pack_fp8(weight: Tensor, scale: Tensor, order: Tensor | None = None) -> QuantisedWeight:
    """weight float8_e4m3fn [N, K], K a multiple of 16, without NaN; scale as in `fp8_scales`; order as in
    `QuantisedWeight`. Raises ValueError."""
    features, columns = weight.shape
    if weight.dtype != torch.float8_e4m3fn:
        raise ValueError(f"weight is {weight.dtype}; allowed is torch.float8_e4m3fn")
    if columns % _COLUMNS:
        raise ValueError(f"weight has {columns} columns; allowed are multiples of {_COLUMNS}")
    scales = fp8_scales(scale, features, columns)
    of_blocks = scale.numel() > 1 and scale.shape not in ((features,), (features, 1))
    blocks = _blocks(scales) if of_blocks and not (features % GROUP or columns % GROUP) else None
    scales = scales[:, ::GROUP].t() if of_blocks else scales[:, 0]
    values = stored_order(weight.view(torch.uint8))
    return QuantisedWeight(values, scales.contiguous(), None, columns, 8, _arrived(weight), blocks, order, True)


def unpack_fp8(packed: QuantisedWeight) -> Tensor:
    """The weight as `pack_fp8` took it."""
    return column_order(packed.values).view(torch.float8_e4m3fn)


def pack_int8(
    codes: Tensor, scale: Tensor, order: Tensor | None = None, rounds_inputs: bool = False
) -> QuantisedWeight:
    """codes int8 [N, K], K a multiple of 16; scale [N], or of groups [N, ⌈K/128⌉]; the rest as in `QuantisedWeight`.
    Raises ValueError."""
    features, columns = codes.shape
    groups = (features, -(-columns // GROUP))
    if codes.dtype != torch.int8:
        raise ValueError(f"codes are {codes.dtype}; allowed is torch.int8")
    if columns % _COLUMNS:
        raise ValueError(f"codes have {columns} columns; allowed are multiples of {_COLUMNS}")
    if tuple(scale.shape) not in ((features,), groups):
        allowed = f"{[features]} or {list(groups)}"
        raise ValueError(f"scale has shape {list(scale.shape)}; codes {[features, columns]} take {allowed}")
    scales = scale.float().t().contiguous()
    return QuantisedWeight(
        stored_order(codes), scales, None, columns, 8, _arrived(codes), order=order, rounds_inputs=rounds_inputs
    )


def unpack_int8(packed: QuantisedWeight) -> Tensor:
    """The codes as `pack_int8` took them."""
    return column_order(packed.values)


def pack_int4(
    values: Tensor, scale: Tensor, zero: Tensor | None = None, order: Tensor | None = None
) -> QuantisedWeight:
    """values [N, K] of 0 to 15, K a multiple of 128; scale and zero [N, K / 128]; order as in `QuantisedWeight`. Raises
    ValueError."""
    features, columns = values.shape
    groups = [features, columns // GROUP]
    if columns % GROUP:
        raise ValueError(f"values have {columns} columns; allowed are multiples of {GROUP}")
    for name, tensor in (("scale", scale), ("zero", zero)):
        if tensor is not None and list(tensor.shape) != groups:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; values {[features, columns]} take {groups}")
    for name, tensor in (("values", values), ("zero", zero)):
        if tensor is not None and tensor.numel() and not 0 <= int(tensor.min()) <= int(tensor.max()) <= 15:
            raise ValueError(f"{name} reach from {int(tensor.min())} to {int(tensor.max())}; allowed are 0 to 15")
    ordered = stored_order(values.to(torch.uint8))
    if columns % (2 * GROUP):
        ordered = torch.nn.functional.pad(ordered, (0, GROUP))
    low, high = ordered.view(features, -1, 2, GROUP).unbind(2)
    lines = (low | high << 4).reshape(features, -1)
    zeros = None if zero is None else (zero.t() + 128).to(torch.bfloat16).contiguous()
    scales = scale.t().to(torch.bfloat16).contiguous()
    return QuantisedWeight(lines, scales, zeros, columns, 4, _arrived(lines), order=order)


def unpack_int4(packed: QuantisedWeight) -> Tensor:
    """The values as `pack_int4` took them, uint8 [N, K]."""
    lines = packed.values.view(packed.values.shape[0], -1, GROUP)
    values = torch.stack((lines & 15, lines >> 4), 2).flatten(1)
    return column_order(values[:, : packed.columns])


def dequantise(packed: QuantisedWeight, dtype: torch.dtype) -> Tensor:
    """W [features, columns], columns in the order of the codes, rounded to the dtype once."""
    if packed.bits == 4:
        zero = None if packed.zeros is None else packed.zeros.t() - 128
        return int4_weight(unpack_int4(packed), packed.scales.t(), zero).to(dtype)
    codes = (unpack_fp8(packed) if packed.is_float else unpack_int8(packed)).float()
    scales = packed.scales
    if scales.dim() == 1:
        return (codes * scales[:, None]).to(dtype)
    return (codes * scales.t().repeat_interleave(GROUP, 1)[:, : packed.columns]).to(dtype)


def int4_weight(values: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    zeros: Tensor | int = SYMMETRIC_ZERO if zero is None else zero.float().repeat_interleave(GROUP, 1)
    return (values.float() - zeros) * scale.float().repeat_interleave(GROUP, 1)


def _blocks(scales: Tensor) -> Tensor | None:
    """[N / 128, K / 128] of scales [N, K] that are equal in each block, else None."""
    first = scales[::GROUP, ::GROUP]
    wide = first.repeat_interleave(GROUP, 0)
    return first.contiguous() if torch.equal(wide, scales[:, ::GROUP]) else None


def _arrived(weight: Tensor) -> Tensor:
    return torch.zeros(-(-weight.shape[0] // 32), dtype=torch.int32, device=weight.device)


def stored_order(values: Tensor) -> Tensor:
    """values [N, K], K a multiple of 16, with columns as they are stored."""
    return values.reshape(values.shape[0], -1, _COLUMNS)[:, :, _STORED].flatten(1)


def column_order(values: Tensor) -> Tensor:
    """The reverse of `stored_order`."""
    places = sorted(range(_COLUMNS), key=_STORED.__getitem__)
    return values.reshape(values.shape[0], -1, _COLUMNS)[:, :, places].flatten(1)
