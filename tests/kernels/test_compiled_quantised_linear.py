"""Weights of 8 and 4 bits: packing bit by bit, the products against formulas written apart, the kernel on Hopper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.dense.quantised_linear import eight_bit_reference, int4_reference, quantised_linear, quantised_mlp
from baton_kernels.dense.quantised_weight import (
    QuantisedWeight,
    dequantise,
    fp8_scales,
    pack_fp8,
    pack_int4,
    pack_int8,
    unpack_fp8,
    unpack_int4,
    unpack_int8,
)

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
FORMS = ("tensor", "channel", "block", "symmetric", "zeros", "int8 channel", "int8 groups", "int8 rounded")
"""The last one with activations in 8 bits too."""
SHAPES = [(96, 128), (400, 640), (6144, 1024), (1008, 3200)]


def e4m3(byte: int) -> float:
    """The format's definition: sign, 4 bits of exponent with bias 7, 3 of mantissa, no infinity."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if byte & 128 else size


def make(form: str, features: int, columns: int, seed: int, device: str) -> tuple[QuantisedWeight, Tensor]:
    """A packed weight and W in float64 by indexes alone."""
    generator = torch.Generator(device).manual_seed(seed)
    groups = (features, columns // 128)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, device=device)

    if form in ("tensor", "channel", "block"):
        numbers = torch.randint(0, 254, (features, columns), generator=generator, device=device)
        numbers = torch.where(numbers < 127, numbers, numbers + 1).to(torch.uint8)  # 127 and 255 are NaN
        shape = {"tensor": (1,), "channel": (features, 1), "block": (-(-features // 128), -(-columns // 128))}[form]
        scale = (draw(*shape) + 0.5) * columns**-0.5 / 100
        values = torch.tensor([e4m3(byte) for byte in range(256)], dtype=torch.float64, device=device)[numbers.int()]
        row = torch.arange(features, device=device)[:, None]
        column = torch.arange(columns, device=device)[None, :]
        at = {"tensor": (row * 0, column * 0), "channel": (row, column * 0), "block": (row // 128, column // 128)}[form]
        wide = scale.double() if form != "tensor" else scale.double()[:, None]
        return pack_fp8(numbers.view(torch.float8_e4m3fn), scale), values * wide[at]
    if form.startswith("int8"):
        numbers = torch.randint(-128, 128, (features, columns), generator=generator, device=device)
        group = torch.arange(columns, device=device) // 128
        scale = (draw(features, -(-columns // 128)) + 0.5) * columns**-0.5 / 60
        scale = scale if form == "int8 groups" else scale[:, 0]
        wide = scale.double()[:, group] if form == "int8 groups" else scale.double()[:, None]
        packed = pack_int8(numbers.to(torch.int8), scale, rounds_inputs=form == "int8 rounded")
        return packed, numbers.double() * wide
    numbers = torch.randint(0, 16, (features, columns), generator=generator, device=device)
    scale = ((draw(*groups) + 0.5) * columns**-0.5 / 5).bfloat16()
    zero = torch.randint(0, 16, groups, generator=generator, device=device) if form == "zeros" else None
    group = torch.arange(columns, device=device) // 128
    weight = (numbers - (8 if zero is None else zero[:, group])).double() * scale.double()[:, group]
    return pack_int4(numbers, scale, zero), weight


def test_every_byte_of_8_bits_keeps_its_value() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    packed = pack_fp8(numbers.view(torch.float8_e4m3fn), torch.ones(16))
    assert torch.equal(unpack_fp8(packed).view(torch.uint8), numbers)
    # In every 16 bytes a thread's 4 neighbours: two columns side by side, each followed by the one 8 further.
    assert packed.values[0].tolist() == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]


def test_what_the_kernel_does_to_bits_gives_e4m3() -> None:
    """`_WIDEN_E4M3` by integers: sign to bit 15, the other bits to 10 … 4, times 2¹²⁰."""
    number = torch.arange(256)
    bits = (number << 8 & 0x8000) | (number << 4 & 0x07F0)
    widened = bits.to(torch.int32).to(torch.int16).view(torch.bfloat16).double() * 2.0**120
    expected = torch.tensor([e4m3(byte) for byte in range(256)], dtype=torch.float64)
    assert torch.equal(widened[number & 127 != 127], expected[number & 127 != 127])


def test_what_the_kernel_does_to_bits_gives_integers_of_8_bits() -> None:
    """`_WIDEN_INT8` by integers: 128 + seven bits, less 128, or 256 where the eighth is set."""
    number = torch.arange(-128, 128)

    def as_float(bits: Tensor) -> Tensor:
        return bits.to(torch.int32).to(torch.int16).view(torch.bfloat16).double()

    widened = as_float(number & 0x7F | 0x4300) - as_float(number & 0x80 | 0x4300)
    assert torch.equal(widened, number.double())
    packed = pack_int8(number.to(torch.int8).reshape(16, 16), torch.ones(16))
    assert torch.equal(unpack_int8(packed), number.to(torch.int8).reshape(16, 16))
    assert packed.values[0].tolist() == [-128 + at for at in STORED]


@pytest.mark.parametrize("columns", [128, 256, 640])
def test_packed_4_bits_lie_where_the_page_says(columns: int) -> None:
    values = torch.randint(0, 16, (24, columns), generator=torch.Generator().manual_seed(columns))
    packed = pack_int4(values, torch.ones(24, columns // 128))
    assert torch.equal(unpack_int4(packed), values.to(torch.uint8))
    for column in range(0, columns, 7):
        line, high, group, place = column // 256, column // 128 % 2, column % 128 // 16, column % 16
        stored = 128 * line + 16 * group + 4 * (place % 8 // 2) + 2 * (place % 2) + place // 8
        assert torch.equal(packed.values[:, stored] >> 4 * high & 15, values[:, column].to(torch.uint8))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("features", "columns"), SHAPES[:2])
@pytest.mark.parametrize("gated", [False, True])
def test_products_equal_the_formula(form: str, features: int, columns: int, gated: bool) -> None:
    packed, weight = make(form, features, columns, 1, "cpu")
    assert torch.equal(dequantise(packed, torch.float64), weight.float().double())
    x, bias = torch.randn(5, columns), torch.randn(features)
    y = x.double() @ weight.t() + bias
    if gated:
        y = torch.nn.functional.silu(y[:, : features // 2]) * y[:, features // 2 :]
    torch.testing.assert_close(quantised_linear(x, packed, bias, gated).double(), y, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_references_equal_the_formula(form: str) -> None:
    packed, weight = make(form, 256, 384, 2, "cpu")
    x = torch.randn(3, 384)
    if packed.bits == 8:
        scale = packed.scales if packed.scales.dim() == 1 else packed.scales.t()
        got = eight_bit_reference(x, unpack_fp8(packed) if packed.is_float else unpack_int8(packed), scale)
    else:
        zero = None if packed.zeros is None else packed.zeros.t() - 128
        got = int4_reference(x, unpack_int4(packed), packed.scales.t(), zero)
    torch.testing.assert_close(got.double(), x.double() @ weight.t(), atol=2e-5, rtol=1e-5)


def test_bad_weights_are_refused_by_name() -> None:
    weight = torch.zeros(256, 256).to(torch.float8_e4m3fn)
    values = torch.zeros(256, 256, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"weight is torch.float32"):
        pack_fp8(torch.zeros(256, 256), torch.ones(1))
    with pytest.raises(ValueError, match=r"scale has shape \[3\]; a weight \[256, 256\] takes one value"):
        fp8_scales(torch.ones(3), 256, 256)
    with pytest.raises(ValueError, match="weight has 250 columns; allowed are multiples of 16"):
        pack_fp8(weight[:, :250], torch.ones(1))
    with pytest.raises(ValueError, match=r"zero has shape \[256, 1\]; values \[256, 256\] take \[256, 2\]"):
        pack_int4(values, torch.ones(256, 2), torch.zeros(256, 1))
    with pytest.raises(ValueError, match=r"codes are torch.uint8; allowed is torch.int8"):
        pack_int8(values, torch.ones(256))
    with pytest.raises(ValueError, match="codes have 250 columns; allowed are multiples of 16"):
        pack_int8(values[:, :250].to(torch.int8), torch.ones(256))
    with pytest.raises(ValueError, match=r"scale has shape \[256, 1\]; codes \[256, 256\] take \[256\] or \[256, 2\]"):
        pack_int8(values.to(torch.int8), torch.ones(256, 1))
    with pytest.raises(ValueError, match="values have 200 columns; allowed are multiples of 128"):
        pack_int4(values[:, :200], torch.ones(256, 1))
    with pytest.raises(ValueError, match="values reach from 0 to 16; allowed are 0 to 15"):
        pack_int4(values + torch.eye(256).to(torch.uint8) * 16, torch.ones(256, 2))
    with pytest.raises(ValueError, match="zero reach from -1 to 0; allowed are 0 to 15"):
        pack_int4(values, torch.ones(256, 2), -torch.eye(256, 2).int())


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 17, 32, 33, 64])
@pytest.mark.parametrize(("features", "columns"), [*SHAPES, (4096, 14336)])
@pytest.mark.parametrize("form", FORMS)
def test_on_hopper_equals_the_formula(form: str, features: int, columns: int, rows: int, gated: bool) -> None:
    from baton_kernels.dense.gpu.streamed_int4 import pays

    packed, weight = make(form, features, columns, rows, "cuda")
    if packed.bits == 4 and pays(rows, packed, gated):
        weight = weight.bfloat16().double()  # scaled before the product, and rounded
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator, device="cuda").bfloat16()
    bias = torch.randn(features, generator=generator, device="cuda").bfloat16() if rows % 2 else None
    y = x.double() @ weight.t() + (0 if bias is None else bias.double())
    if gated:
        y = y.bfloat16().double()
        y = torch.nn.functional.silu(y[:, : features // 2]).bfloat16().double() * y[:, features // 2 :]
    got = quantised_linear(x, packed, bias, gated)
    # The result is rounded to 8 bits, gated twice.
    torch.testing.assert_close(got.double(), y, atol=2e-2, rtol=2**-6)
    assert torch.equal(got, quantised_linear(x, packed, bias, gated))
    assert not packed.arrived.any()


STORED = [column + at for column in (0, 2, 4, 6) for at in (0, 8, 1, 9)]
"""Which of 16 columns stands in each stored place, as the page of the packed form says."""


def in_stored_order(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1, 16)[:, :, STORED].flatten(1)


def assert_rounded(codes: Tensor, values: Tensor) -> None:
    """To e4m3: half a unit of the last of 3 bits. Triton's interpreter rounds to neighbours of neighbours."""
    relative = 2**-4 if codes.is_cuda else 0.55
    torch.testing.assert_close(codes.float(), values, rtol=relative, atol=2**-9)


@pytest.mark.parametrize("columns", [16, 400, 1024])
def test_rows_in_8_bits_equal_the_formula(triton_device: str, columns: int) -> None:
    from baton_kernels.dense.gpu.rounded_activations import quantise_rows

    x = (torch.randn(5, columns, generator=torch.Generator().manual_seed(1)) * 3).to(triton_device)
    x[2] = 0
    codes, scales = quantise_rows(x)
    expected = x.abs().amax(1, keepdim=True).clamp(min=1e-12) / 448
    torch.testing.assert_close(scales, expected, rtol=1e-6, atol=0)
    assert_rounded(codes, in_stored_order(x) / scales)


@pytest.mark.parametrize("columns", [16, 400, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_in_integers_equal_the_formula(triton_device: str, columns: int, dtype: torch.dtype) -> None:
    from baton_kernels.dense.gpu.rounded_activations import quantise_rows

    x = (torch.randn(5, columns, generator=torch.Generator().manual_seed(1)) * 3).to(triton_device, dtype)
    x[2] = 0
    x[3, :4] = torch.tensor([127.0, -127.0, 0.5, 1.5])
    x[3, 4:] = 2.5
    codes, scales = quantise_rows(x, torch.int8)
    expected = x.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    torch.testing.assert_close(scales, expected, rtol=1e-6, atol=0)
    stored = in_stored_order(x.float())
    assert codes.dtype == torch.int8
    assert not codes[2].any()
    # No further than half a step, give or take the last bit of a float.
    assert bool(((codes.float() * scales - stored).abs() <= scales * 0.50001).all())
    # Halves go to the even neighbour, and both ends are reached.
    halves = {127.0: 127, -127.0: -127, 0.5: 0, 1.5: 2, 2.5: 2}
    assert codes[3].tolist() == [halves[value] for value in stored[3].tolist()]


def brought_back(codes: Tensor, scales: Tensor) -> Tensor:
    """Rows in their own order of columns, float64."""
    out = torch.empty(codes.shape, dtype=torch.float64, device=codes.device)
    places = in_stored_order(torch.arange(codes.shape[1], device=codes.device)[None].float())[0].long()
    out[:, places] = codes.double() * scales.double()
    return out


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "features", "columns"), [(5, 96, 128), (130, 400, 656)])
def test_integer_products_equal_the_formula(
    triton_device: str, rows: int, features: int, columns: int, bias: bool
) -> None:
    """Whatever the number of parts; sums of integers are exact."""
    from baton_kernels.dense.gpu.int8_product import Int8Config, int8_product
    from baton_kernels.dense.gpu.rounded_activations import quantise_rows

    generator = torch.Generator().manual_seed(rows)
    packed, weight = make("int8 channel", features, columns, 2, triton_device)
    codes, scales = quantise_rows(torch.randn(rows, columns, generator=generator).to(triton_device), torch.int8)
    added = torch.randn(features, generator=generator).to(triton_device) if bias else None
    expected = brought_back(codes, scales) @ weight.t() + (0 if added is None else added.double())
    whole = int8_product(codes, scales, packed, added, torch.float32, Int8Config(64, 64, 1, 2, 4))
    torch.testing.assert_close(whole.double(), expected, atol=1e-5, rtol=1e-5)
    for splits in (2, 4):
        got = int8_product(codes, scales, packed, added, torch.float32, Int8Config(64, 64, splits, 2, 4))
        torch.testing.assert_close(got, whole, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_gates_in_8_bits_equal_the_formula(triton_device: str, kind: torch.dtype) -> None:
    """For a product without scales, and for a scaled one."""
    from baton_kernels.dense.gpu.rounded_activations import GREATEST, gate_rounded, swiglu_rounded

    generator = torch.Generator().manual_seed(3)
    product = (torch.randn(5, 96, generator=generator) * 20_000).bfloat16().to(triton_device)
    row_scales, scales = (torch.rand(*shape, generator=generator) for shape in ((5, 1), (96,)))
    bias = torch.randn(96, generator=generator).to(triton_device)
    row_scales, scales = row_scales.to(triton_device), (scales / 20_000).to(triton_device)
    y = (product.float() * (row_scales * scales) + bias).bfloat16()
    gate, up = y[:, :48].double(), y[:, 48:].double()
    expected = torch.nn.functional.silu(gate) * up
    # The interpreter cuts bfloat16 off where a GPU rounds.
    relative = 1e-5 if product.is_cuda else 2**-6
    step = 0.501 if kind == torch.int8 else 0.0
    relative_step = 0.0 if kind == torch.int8 else 2**-4 if product.is_cuda else 0.55
    for codes, got_scales in (swiglu_rounded(product, row_scales, scales, bias, kind), gate_rounded(y, kind)):
        assert codes.dtype == kind
        greatest = expected.abs().amax(1, keepdim=True) / GREATEST[kind]
        torch.testing.assert_close(got_scales.double(), greatest, rtol=relative, atol=0)
        apart = (brought_back(codes, got_scales) - expected).abs()
        allowed = got_scales.double() * (step or 2**-9) + expected.abs() * (relative + relative_step)
        assert bool((apart <= allowed).all())


@pytest.mark.parametrize("columns", [128, 400, 2304])
def test_groups_in_8_bits_equal_the_formula(triton_device: str, columns: int) -> None:
    from baton_kernels.dense.gpu.rounded_activations import quantise_groups

    x = (torch.randn(3, columns, generator=torch.Generator().manual_seed(1)) * 3).to(triton_device)
    codes, scales = quantise_groups(x)
    groups = -(-columns // 128)
    assert scales.shape == (4, groups)
    codes, scales = codes[:3], scales[:3]
    padded = torch.nn.functional.pad(x, (0, groups * 128 - columns)).view(3, groups, 128)
    torch.testing.assert_close(scales, padded.abs().amax(2) / 448, rtol=1e-6, atol=0)
    assert_rounded(codes, in_stored_order(x) / scales.repeat_interleave(128, 1)[:, :columns])


@pytest.mark.parametrize(("rows", "columns"), [(3, 128), (6, 400), (9, 2304)])
def test_a_gate_and_groups_in_one_pass_equal_both_apart(triton_device: str, rows: int, columns: int) -> None:
    from baton_kernels.dense.gpu.rounded_activations import gate_groups, quantise_groups
    from baton_kernels.dense.gpu.swiglu import swiglu_triton

    y = torch.randn(rows, 2 * columns, generator=torch.Generator().manual_seed(rows)) * 4
    y = y.bfloat16().to(triton_device)
    codes, scales = gate_groups(y)
    expected_codes, expected_scales = quantise_groups(swiglu_triton(y))
    assert torch.equal(codes[:rows].view(torch.uint8), expected_codes[:rows].view(torch.uint8))
    assert torch.equal(scales[:rows], expected_scales[:rows])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("features", "columns"), SHAPES[:2])
def test_the_gpu_brings_weights_back_as_the_formula(triton_device: str, form: str, features: int, columns: int) -> None:
    from baton_kernels.dense.gpu.dequantise import dequantise_triton

    packed, _ = make(form, features, columns, 4, triton_device)
    got = dequantise_triton(packed, torch.float32)
    assert torch.equal(got, in_stored_order(dequantise(packed, torch.float32)))


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows", [65, 128, 150, 256, 1000, 4100])
@pytest.mark.parametrize(("features", "columns"), [(6144, 1024), (4096, 14336), (1024, 640)])
@pytest.mark.parametrize("form", FORMS)
def test_many_rows_on_hopper_equal_the_formula(form: str, features: int, columns: int, rows: int, gated: bool) -> None:
    """e4m3 and W8A8 have activations rounded as documented, other integers unrounded ones."""
    from baton_kernels.dense.gpu.rounded_activations import quantise_groups, quantise_rows

    packed, weight = make(form, features, columns, 5, "cuda")
    x = torch.randn(rows, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(6)).bfloat16()
    bias = torch.randn(features, device="cuda").bfloat16()
    rounded = x.double()
    if form == "block" and columns % 512 == 0:
        codes, scales = quantise_groups(x)
        rounded = brought_back(codes, scales.repeat_interleave(128, 1))[:rows]
    elif form != "block" and packed.rounds_inputs:
        rounded = brought_back(*quantise_rows(x, torch.float8_e4m3fn if packed.is_float else torch.int8))
    y = (rounded @ weight.double().t() + bias.double()).bfloat16().double()
    if gated:
        y = torch.nn.functional.silu(y[:, : features // 2]) * y[:, features // 2 :]
    got = quantised_linear(x, packed, bias, gated).double()
    assert float((got - y).norm() / y.norm()) < 1e-2


@pytest.mark.parametrize("bits", [8, 4])
def test_an_order_of_columns_is_followed(bits: int) -> None:
    order = torch.randperm(256, generator=torch.Generator().manual_seed(2))
    x = torch.randn(3, 256)
    weight = torch.randint(0, 16, (64, 256), generator=torch.Generator().manual_seed(3))
    if bits == 8:
        packed = pack_fp8(weight.float().to(torch.float8_e4m3fn), torch.ones(64), order)
        wide = weight.float()
    else:
        packed = pack_int4(weight, torch.ones(64, 2), order=order)
        wide = weight.float() - 8
    expected = torch.zeros(3, 64)
    for stored, column in enumerate(order.tolist()):
        expected += x[:, column, None] * wide[None, :, stored]
    torch.testing.assert_close(quantised_linear(x, packed, None), expected, atol=1e-3, rtol=1e-4)


def test_the_last_features_are_a_weight_of_their_own() -> None:
    for form in FORMS:
        packed, weight = make(form, 384, 256, 7, "cpu")
        part = packed.last_features(256)
        assert torch.equal(dequantise(part, torch.float64), weight[-256:].float().double())
        assert (part.blocks is None) == (form != "block")


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("rows", [1, 64, 65, 300])
@pytest.mark.parametrize("form", FORMS)
def test_an_mlp_on_hopper_equals_its_two_products(form: str, rows: int) -> None:
    gate_up, _ = make(form, 2816, 1024, 8, "cuda")
    down, _ = make(form, 1024, 1408, 9, "cuda")
    x = torch.randn(rows, 1024, device="cuda", generator=torch.Generator("cuda").manual_seed(6)).bfloat16()
    bias = torch.randn(2816, device="cuda").bfloat16()
    expected = quantised_linear(quantised_linear(x, gate_up, bias, gated=True), down, None).double()
    got = quantised_mlp(x, gate_up, bias, down, None).double()
    # Of channels and many rows the middle is not rounded to 16 bits first: some of its 8 bits fall to the other side.
    assert float((got - expected).norm() / expected.norm()) < 2e-2
