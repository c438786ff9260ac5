"""Scales that are powers of two: each exponent with each code against the formula, and what is too large."""

from __future__ import annotations

import pytest
import torch

from baton_engine.model.errors import WeightsError
from baton_engine.model.formats.stored_weight import StoredWeight
from baton_engine.model.formats.unpacking import unpack, unpack_mxfp4
from baton_testing.engine.quantised_models import FOUR_BIT_FLOATS
from baton_wire.models.formats.eight_bits import EightBits
from baton_wire.models.formats.mxfp4 import PackedFloats
from baton_wire.models.formats.weight_format import EXPONENTS, POWERS

E4M3 = EightBits("F8_E4M3", (1, 32), scale_dtypes=EXPONENTS)
BYTES = torch.arange(256, dtype=torch.uint8)
DTYPES = [torch.uint8, torch.float8_e8m0fnu]


def exponents(count: int, groups: int, dtype: torch.dtype) -> torch.Tensor:
    """Row e has exponent e."""
    return torch.arange(count, dtype=torch.uint8)[:, None].repeat(1, groups).view(dtype)


def dense(weight: StoredWeight | torch.Tensor) -> torch.Tensor:
    """A whole weight, dequantised."""
    assert isinstance(weight, StoredWeight)
    return weight.dequantise()


def e4m3(code: int) -> float:
    """A sign, four bits of exponent with bias 7, three of mantissa; exponent 0 is denormal."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_exponent_scales_every_byte_of_four_bits(dtype: torch.dtype) -> None:
    parts = {"weight_packed": BYTES.repeat(253, 1), "weight_scale": exponents(253, 16, dtype)}
    got = dense(unpack(PackedFloats(), parts, 253, 512, "x")).double()
    row = torch.tensor([FOUR_BIT_FLOATS[code] for byte in range(256) for code in (byte & 15, byte >> 4)]).double()
    for exponent in range(253):
        assert torch.equal(got[exponent], row * 2.0 ** (exponent - 127))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_exponent_scales_every_number_of_e4m3(dtype: torch.dtype) -> None:
    codes = [code for code in range(256) if code & 127 != 127] + [0, 0]
    weight = torch.tensor(codes, dtype=torch.uint8).repeat(247, 1).view(torch.float8_e4m3fn)
    parts = {"weight": weight, "weight_scale": exponents(247, 8, dtype)}
    got = dense(unpack(E4M3, parts, 247, 256, "x")).double()
    row = torch.tensor([e4m3(code) for code in codes], dtype=torch.float64)
    for exponent in range(247):
        assert torch.equal(got[exponent], row * 2.0 ** (exponent - 127))


def test_a_block_has_one_exponent() -> None:
    stored = EightBits("F8_E4M3", (128, 128), "weight_scale_inv", scale_dtypes=(POWERS,))
    scales = torch.tensor([[120, 127], [130, 0]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    parts = {"weight": torch.ones(200, 130).to(torch.float8_e4m3fn), "weight_scale_inv": scales}
    got = dense(unpack(stored, parts, 200, 130, "x"))
    expected = torch.empty(200, 130)
    expected[:128, :128], expected[:128, 128:] = 2.0**-7, 1.0
    expected[128:, :128], expected[128:, 128:] = 8.0, 2.0**-127
    assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("exponent", "why"), [(255, "is no number"), (254, "makes e4m3 infinite"), (247, "makes e4m3 infinite")]
)
def test_what_e4m3_is_not_scaled_by_is_refused(exponent: int, why: str, dtype: torch.dtype) -> None:
    scales = torch.full((4, 2), 100, dtype=torch.uint8)
    scales[3, 1] = exponent
    parts = {"weight": torch.ones(4, 64).to(torch.float8_e4m3fn), "weight_scale": scales.view(dtype)}
    with pytest.raises(
        WeightsError, match=f"^tensor x.weight_scale: holds {exponent}, which {why}; allowed: 0 to 246$"
    ):
        unpack(E4M3, parts, 4, 64, "x")


@pytest.mark.parametrize(
    ("exponent", "why"), [(255, "is no number"), (254, "makes e2m1 infinite"), (253, "makes e2m1 infinite")]
)
def test_what_four_bits_are_not_scaled_by_is_refused(exponent: int, why: str) -> None:
    scales = torch.full((4, 2), 100, dtype=torch.uint8)
    scales[3, 1] = exponent
    parts = {"weight_packed": torch.zeros(4, 32, dtype=torch.uint8), "weight_scale": scales}
    message = f"holds {exponent}, which {why}; allowed: 0 to 252$"
    with pytest.raises(WeightsError, match=f"^tensor x.weight_scale: {message}"):
        unpack(PackedFloats(), parts, 4, 64, "x")
    with pytest.raises(WeightsError, match=f"^tensor x_scales: {message}"):
        unpack_mxfp4(torch.zeros(1, 4, 2, 16, dtype=torch.uint8), scales[None], "x")
