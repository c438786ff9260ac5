"""Scales and rounding that go along with norm and RoPE: the same bits as in kernels of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import KvLayer, PlacedRows
from baton_kernels.dense.quantised_linear import (
    quantised_linear,
    quantised_mlp,
    quantised_mlp_product,
    quantised_product,
    rounded_dtype,
)
from baton_kernels.dense.quantised_weight import QuantisedWeight, pack_fp8, pack_int8
from baton_kernels.dense.rounded_rows import RoundedRows, ScaledProduct

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = [pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")]
KINDS = [torch.float8_e4m3fn, torch.int8]


def drawn(*shape: int, device: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def dtype_of(device: str) -> torch.dtype:
    """The interpreter cuts bfloat16 off where a GPU rounds."""
    return torch.bfloat16 if device == "cuda" else torch.float32


def unscaled(rows: int, features: int, device: str) -> ScaledProduct:
    values = drawn(rows, features, device=device, dtype=dtype_of(device), seed=1) * 100
    row_scales, scales = drawn(rows, 1, device=device, seed=2).abs(), drawn(features, device=device, seed=3).abs() / 100
    return ScaledProduct(values, row_scales, scales)


def assert_same(got: RoundedRows, expected: RoundedRows) -> None:
    for name in ("rows", "codes", "scales"):
        ours, theirs = (getattr(rows, name).view(torch.uint8) for rows in (got, expected))
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("hidden", [48, 256, 400])
def test_a_norm_scales_and_rounds_as_kernels_of_their_own(triton_device: str, hidden: int, kind: torch.dtype) -> None:
    from baton_kernels.dense.gpu.rms_norm import add_rms_norm_rounded, add_rms_norm_triton
    from baton_kernels.dense.gpu.rounded_activations import quantise_rows, scale_product

    y = unscaled(7, hidden, triton_device)
    residual = drawn(7, hidden, device=triton_device, dtype=y.values.dtype)
    weight = drawn(hidden, device=triton_device, dtype=y.values.dtype, seed=4)
    scaled = scale_product(y.values.clone(), y.row_scales, y.scales, None)
    assert torch.equal(scaled, y.product())
    normed, total = add_rms_norm_triton(scaled, residual, weight, 1e-5)
    expected = RoundedRows(normed, *quantise_rows(normed, kind))
    for x in (y, scaled):
        also_normed, also_total = add_rms_norm_triton(x, residual, weight, 1e-5)
        assert torch.equal(also_normed, normed)
        assert torch.equal(also_total, total)
        rounded, total_of_rounded = add_rms_norm_rounded(x, residual, weight, 1e-5, kind)
        assert_same(rounded, expected)
        assert torch.equal(total_of_rounded, total)


def test_rope_scales_as_a_kernel_of_its_own(triton_device: str) -> None:
    from baton_kernels.attention.gpu.rope_kv_write import rope_kv_write_triton

    rows, q_heads, kv_heads, d = 5, 4, 2, 16
    y = unscaled(rows, (q_heads + 2 * kv_heads) * d, triton_device)
    dtype = y.values.dtype
    cos, sin = (drawn(32, d, device=triton_device, dtype=dtype, seed=seed) for seed in (5, 6))
    slots = torch.tensor([3, -1, 17, 18, 0], device=triton_device)
    placed = PlacedRows(torch.arange(rows, device=triton_device), slots, cos, sin)
    results = []
    for qkv in (y, y.product()):
        pool = torch.zeros(2, 1, 2, kv_heads, 16, d, dtype=dtype, device=triton_device)
        results.append((rope_kv_write_triton(qkv, KvLayer(pool, 0), placed, q_heads), pool))
    for got, expected in zip(*results, strict=True):
        assert torch.equal(got, expected)
        assert bool(got.any())


def weights(kind: torch.dtype) -> tuple[QuantisedWeight, QuantisedWeight]:
    def one(features: int, columns: int) -> QuantisedWeight:
        scale = (torch.rand(features, device="cuda") + 0.5) * columns**-0.5
        if kind == torch.int8:
            numbers = torch.randint(-127, 128, (features, columns), dtype=torch.int8, device="cuda")
            return pack_int8(numbers, scale / 60, rounds_inputs=True)
        return pack_fp8(torch.randn(features, columns, device="cuda").to(kind), scale)

    return one(3072, 1024), one(1024, 1536)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("rows", [5, 64, 65, 128, 129, 200, 256, 512, 513, 1500])
class TestOnHopper:
    pytestmark = on_hopper

    def test_rounded_rows_and_scales_left_change_no_bit(self, rows: int, kind: torch.dtype) -> None:
        from baton_kernels.dense.gpu.rounded_activations import quantise_rows

        gate_up, down = weights(kind)
        x = torch.randn(rows, 1024, dtype=torch.bfloat16, device="cuda")
        codes = rounded_dtype(x, gate_up, gated=True)
        assert codes == (kind if rows > 64 else None)
        rounded = RoundedRows(x, *quantise_rows(x, kind))
        expected, expected_mlp = quantised_linear(x, gate_up, None), quantised_mlp(x, gate_up, None, down, None)
        for given in (x, rounded):
            for _ in range(10):
                y = quantised_product(given, gate_up, None)
                mlp = quantised_mlp_product(given, gate_up, None, down, None)
                left = kind == torch.float8_e4m3fn and 64 < rows <= 512
                assert isinstance(y, ScaledProduct) == isinstance(mlp, ScaledProduct) == left
                assert torch.equal(y.product() if isinstance(y, ScaledProduct) else y, expected)
                assert torch.equal(mlp.product() if isinstance(mlp, ScaledProduct) else mlp, expected_mlp)
