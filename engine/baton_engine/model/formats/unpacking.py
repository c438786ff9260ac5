"""Unpack a checkpoint's tensors to a weight: one function for each format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

import torch
from torch import Tensor

from baton_engine.model.errors import WeightsError
from baton_engine.model.formats.stored_weight import FP8, StoredWeight
from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_kernels.dense.mxfp4_weight import SCALE_LIMIT, pack_mxfp4
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.mxfp4 import BLOCK, PackedFloats
from baton_wire.models.formats.packed_integers import Awq, Gptq, PackedIntegers
from baton_wire.models.formats.weight_format import WeightFormat

Parts = Mapping[str, Tensor]
"""Tensors of the forms that the format asks for, by the last part of their names; optional ones may be missing."""

AWQ_PLACES: Final = [0, 4, 1, 5, 2, 6, 3, 7]
"""The place of each of 8 neighbouring values in their word."""
E2M1: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of four-bit floats by their codes."""
E8M0_NAN: Final = 255
GREATEST_EXPONENT: Final = {"e4m3": 246, "e2m1": 252}
"""Greatest exponent of a scale, + 127. A larger one times the greatest value, 448 or 6, overflows float32."""
NOT_A_NUMBER: Final = 0x7F
"""The e4m3 code of no number, without its sign."""


def unpack(stored: WeightFormat, parts: Parts, features: int, columns: int, layer: str) -> StoredWeight | Tensor:
    """The weight [features, columns] of a layer, or of a rank's part of it; dense float32 where a part's columns fill
    no groups. Raises WeightsError naming the tensor."""
    try:
        match stored:
            case EightBits():
                return _eight_bits(stored, parts, features, columns)
            case PackedIntegers():
                return _packed_integers(stored, parts, features, columns)
            case Gptq():
                return _gptq(stored, parts, columns)
            case Awq():
                return _awq(stored, parts, columns)
            case PackedFloats():
                return _packed_floats(parts)
    except ValueError as error:
        raise WeightsError(f"tensor {layer}.{error}") from error
    raise TypeError(f"no unpacking of {type(stored).__name__}")


def unpack_mxfp4(blocks: Tensor, scales: Tensor, name: str) -> Tensor:
    """blocks uint8 [E, features, n, 16], scales uint8 [E, features, n] → float32 [E, features, 32 · n]. Raises
    WeightsError naming the tensor."""
    _check_exponents(scales, name)
    values = torch.tensor(E2M1, device=blocks.device)
    return torch.ldexp(values[_codes(blocks).int()], scales.int()[..., None] - 127).flatten(-2)


def pack_mxfp4_stack(blocks: Tensor, scales: Tensor, name: str, in_turn: bool) -> Mxfp4Stack:
    """Pack a stack in MXFP4 as a GPU streams it. `in_turn`: gate and up features are stored in turn; gate comes first
    and up below it. Raises WeightsError naming the tensor."""
    _check_exponents(scales, name)
    if (greatest := int(scales.max())) > SCALE_LIMIT:
        raise WeightsError(f"tensor {name}_scales: holds {greatest}; allowed on a GPU: 0 to {SCALE_LIMIT}")

    def separate(rows: Tensor) -> Tensor:
        return torch.cat((rows[::2], rows[1::2])) if in_turn else rows

    experts = [  # one at a time: codes of a stack have four times the bytes of the packed values
        pack_mxfp4(separate(_codes(b).flatten(-2))[None], separate(s)[None])
        for b, s in zip(blocks, scales, strict=True)
    ]
    values = torch.cat([expert.values for expert in experts])
    exponents = torch.cat([expert.scales for expert in experts])
    return Mxfp4Stack(values, exponents, experts[0].columns)


def _check_exponents(scales: Tensor, name: str) -> None:
    try:
        _powers(f"{name}_scales", scales, "e2m1")
    except ValueError as error:
        raise WeightsError(f"tensor {error}") from error


def _powers(name: str, scales: Tensor, values: Literal["e4m3", "e2m1"]) -> Tensor:
    """float32 powers of two of exponents + 127 (E8M0). Raises ValueError where they make a value infinite."""
    exponents = scales.view(torch.uint8).int()
    if (greatest := int(exponents.max())) > GREATEST_EXPONENT[values]:
        why = "is no number" if greatest == E8M0_NAN else f"makes {values} infinite"
        raise ValueError(f"{name}: holds {greatest}, which {why}; allowed: 0 to {GREATEST_EXPONENT[values]}")
    # These are a float's own exponent bits, except that 0 means the subnormal 2^-127.
    return torch.where(exponents == 0, 1 << 22, exponents << 23).view(torch.float32)


def _codes(blocks: Tensor) -> Tensor:
    """uint8 [..., 32] of [..., 16]: the lower half of a byte first."""
    return torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)


def _eight_bits(stored: EightBits, parts: Parts, features: int, columns: int) -> StoredWeight:
    codes = parts["weight"]
    if stored.dtype == "F8_E4M3":
        if bool((codes.view(torch.uint8) & NOT_A_NUMBER == NOT_A_NUMBER).any()):
            raise ValueError("weight: holds values that are no numbers; allowed: finite values of e4m3")
    else:
        codes = _to_unsigned(codes)

    def by_feature(values: Tensor) -> Tensor:
        values = values.reshape(stored.groups(features, columns))
        rows = stored.block[0] or features
        return (values if rows == 1 else values.repeat_interleave(rows, 0)[:features]).contiguous()

    scales = by_feature(_scales(stored.scale_name, parts[stored.scale_name]))
    zeros = None if stored.symmetric else by_feature(_to_unsigned(parts["weight_zero_point"]))
    return StoredWeight(codes, 8, scales, zeros, stored.block[1] or columns, rounds_inputs=stored.rounds_inputs)


def _packed_integers(stored: PackedIntegers, parts: Parts, features: int, columns: int) -> StoredWeight | Tensor:
    stored_shape = parts["weight_shape"].tolist()
    if stored_shape != [features, columns]:
        raise ValueError(f"weight_shape: says {stored_shape}; the config asks for {[features, columns]}")
    codes = _words_apart(parts["weight_packed"], stored.bits)[:, :columns]
    scales = _checked_scales("weight_scale", parts["weight_scale"]).reshape(features, -1).contiguous()
    zeros = None
    if not stored.symmetric:
        zeros = _words_apart(parts["weight_zero_point"].t(), stored.bits)[:, :features].t().contiguous()
    weight = StoredWeight(codes.contiguous(), stored.bits, scales, zeros, stored.group or columns)
    return _sort_columns("weight_g_idx", weight, parts["weight_g_idx"]) if stored.has_order else weight


def _gptq(stored: Gptq, parts: Parts, columns: int) -> StoredWeight | Tensor:
    codes = _words_apart(parts["qweight"].t(), stored.bits)
    zeros = _words_apart(parts["qzeros"], stored.bits).t()
    if stored.lesser_zeros:
        top = (1 << stored.bits) - 1
        if int(zeros.max()) == top:
            raise ValueError(f"qzeros: holds a zero point of {top + 1}; allowed: 0 to {top}")
        zeros = zeros + 1
    scales = _checked_scales("scales", parts["scales"]).t().contiguous()
    weight = StoredWeight(codes.contiguous(), stored.bits, scales, zeros.contiguous(), stored.group or columns)
    return _sort_columns("g_idx", weight, parts["g_idx"]) if "g_idx" in parts else weight


def _awq(stored: Awq, parts: Parts, columns: int) -> StoredWeight:
    def apart(words: Tensor) -> Tensor:
        values = _words_apart(words, 4)
        return values.view(words.shape[0], -1, 8)[:, :, AWQ_PLACES].flatten(1).t().contiguous()

    scales = _checked_scales("scales", parts["scales"]).t().contiguous()
    zeros = apart(parts["qzeros"]) if stored.has_zeros else None
    return StoredWeight(apart(parts["qweight"]), 4, scales, zeros, stored.group or columns)


def _packed_floats(parts: Parts) -> StoredWeight:
    of_codes = torch.tensor(E2M1).to(FP8).view(torch.uint8).to(parts["weight_packed"].device)
    codes = of_codes[_codes(parts["weight_packed"]).int()].view(FP8)
    return StoredWeight(codes, 8, _powers("weight_scale", parts["weight_scale"], "e2m1"), None, BLOCK)


def _scales(name: str, scales: Tensor) -> Tensor:
    """Float32 scales of e4m3 or integer codes, which are stored as floats or as exponents of powers of two."""
    if scales.element_size() == 1:
        return _powers(name, scales, "e4m3")
    return _checked_scales(name, scales)


def _checked_scales(name: str, scales: Tensor) -> Tensor:
    """The scales in float32. Raises ValueError unless all are finite and above zero."""
    wide = scales.float()
    if not bool(torch.isfinite(wide).all()):
        raise ValueError(f"{name}: holds an infinity or no number; allowed: finite scales above 0")
    if wide.numel() and float(wide.min()) <= 0:
        raise ValueError(f"{name}: holds {float(wide.min()):g}; allowed: finite scales above 0")
    return wide


def _words_apart(words: Tensor, bits: int) -> Tensor:
    """int32 words [rows, n] → uint8 codes [rows, n · 32 / bits], the lowest bits first. bits is 4 or 8."""
    as_bytes = words.contiguous().view(torch.uint8)
    if bits == 8:
        return as_bytes
    return torch.stack((as_bytes & 15, as_bytes >> 4), -1).flatten(1)


def _to_unsigned(codes: Tensor) -> Tensor:
    """Codes in int8 → uint8, each 128 more."""
    return (codes.view(torch.uint8) ^ 128).contiguous()


def _sort_columns(name: str, weight: StoredWeight, groups: Tensor) -> StoredWeight | Tensor:
    """The weight whose columns, in their own order so far, belong to `groups` [columns].

    A rank's part has some of the columns, but scales of all groups: it keeps those of the groups that it has whole. If
    it has others too, it is dequantised.
    """
    count, columns = weight.scales.shape[1], weight.codes.shape[1]
    sizes = torch.bincount(groups.clamp(0, count), minlength=count)
    is_part = count * weight.group > columns
    if int(groups.min()) < 0 or len(sizes) > count or int(sizes.max()) > weight.group:
        raise ValueError(f"{name}: places columns in groups of other sizes than the config's {weight.group}")
    held = sizes.nonzero().flatten()
    if int(sizes[held].min()) < weight.group:
        if not is_part:
            raise ValueError(f"{name}: places columns in groups of other sizes than the config's {weight.group}")
        return weight.dequantise_by(groups.long())
    zeros = None if weight.zeros is None else weight.zeros.index_select(1, held)
    sorted_weight = replace(weight, scales=weight.scales.index_select(1, held), zeros=zeros)
    order = torch.argsort(groups, stable=True)
    if torch.equal(order, torch.arange(columns, device=order.device)):
        return sorted_weight
    return replace(sorted_weight, codes=weight.codes.index_select(1, order), order=order)
