"""Products of 8 and 4 bits on a CPU: any form, group, shape and number of rows, against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.dense.linear import packs_linear
from baton_kernels.dense.quantised_linear import pack_panels

torch.set_num_threads(1)  # compiled kernels compute on one
pytestmark = pytest.mark.skipif(not packs_linear(torch.float32), reason="no AVX-512, or no LLVM")
ROWS = (1, 2, 3, 7, 23, 24, 31)
FORMS = ("int8", "int8 with zeros", "int4", "int4 with zeros", "e4m3")


def stored(form: str, features: int, columns: int, group: int) -> tuple[Tensor, int, Tensor, Tensor | None, Tensor]:
    """Codes, bits, scales, zeros, and W in float64."""
    random = torch.Generator().manual_seed(features + columns)
    groups = -(-columns // group)
    scales = torch.rand(features, groups, generator=random) + 0.5
    wide = scales.double().repeat_interleave(group, 1)[:, :columns]
    if form == "e4m3":
        codes = torch.randn(features, columns, generator=random).to(torch.float8_e4m3fn)
        return codes, 8, scales, None, codes.double() * wide
    bits = int(form[3])
    numbers = torch.randint(0, 1 << bits, (features, columns), generator=random, dtype=torch.uint8)
    zeros = None
    less = torch.full((features, groups), float(1 << (bits - 1)), dtype=torch.float64)
    if "zeros" in form:
        zeros = torch.randint(0, 1 << bits, (features, groups), generator=random, dtype=torch.uint8)
        less = zeros.double()
    return numbers, bits, scales, zeros, (numbers.double() - less.repeat_interleave(group, 1)[:, :columns]) * wide


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("features", "columns", "group"), [(2, 2, 2), (70, 40, 40), (200, 96, 32), (130, 66, 10)])
def test_few_rows_and_many_are_multiplied_by_what_the_codes_mean(
    form: str, features: int, columns: int, group: int
) -> None:
    codes, bits, scales, zeros, weight = stored(form, features, columns, group)
    bias = torch.randn(features)
    plain = pack_panels(codes, bits, scales, zeros, group, bias, gated=False)
    gated = pack_panels(codes, bits, scales, zeros, group, bias, gated=True)
    assert plain is not None
    assert gated is not None
    for rows in ROWS:
        x, total = torch.randn(rows, columns), torch.randn(rows, features)
        expected = x.double() @ weight.t() + bias
        atol = 2e-6 * (1 + (x.double().abs() @ weight.abs().t()).max().item())
        torch.testing.assert_close(plain(x).double(), expected, rtol=0, atol=atol)
        sums = total.double() + expected
        plain.add_to(total, x)
        torch.testing.assert_close(total.double(), sums, rtol=0, atol=atol)
        gate, up = expected.chunk(2, -1)
        bound = atol * (1 + expected.abs().max().item())
        torch.testing.assert_close(gated.gated(x).double(), functional.silu(gate) * up, rtol=0, atol=bound)


def test_every_code_of_a_form_means_its_number() -> None:
    """The weight is a column of all codes beside zeros; e4m3 without its two NaN."""
    one = torch.ones(1, 2)
    for bits in (8, 4):
        codes = torch.arange(1 << bits, dtype=torch.uint8)[:, None].repeat(1, 2)
        codes[:, 1] = 1 << (bits - 1)
        layer = pack_panels(codes, bits, torch.ones(1 << bits, 1), None, 2, None, gated=False)
        assert layer is not None
        assert layer(one)[0].tolist() == [code - (1 << (bits - 1)) for code in range(1 << bits)]
    numbers = torch.tensor([code for code in range(256) if code not in (127, 255)], dtype=torch.uint8)
    floats = torch.stack((numbers, torch.zeros_like(numbers)), 1).view(torch.float8_e4m3fn)
    layer = pack_panels(floats, 8, torch.ones(len(numbers), 1), None, 2, None, gated=False)
    assert layer is not None
    assert torch.equal(layer(one)[0], numbers.view(torch.float8_e4m3fn).float())


def test_codes_take_the_memory_that_they_are_stored_in() -> None:
    for form, share in (("int8", 0.25), ("int4", 0.125), ("e4m3", 0.25)):
        codes, bits, scales, zeros, weight = stored(form, 640, 1280, 128)
        layer = pack_panels(codes, bits, scales, zeros, 128, None, gated=False)
        assert layer is not None
        assert layer.stored_bytes() < 1.1 * share * 4 * weight.numel()


def test_what_the_kernel_cannot_read_is_held_otherwise() -> None:
    codes, bits, scales, zeros, _ = stored("int4", 8, 9, 3)
    assert pack_panels(codes, bits, scales, zeros, 3, None, gated=False) is None
