"""Layers in the CPU's own layout compute what their plain formulas say, at widths where the layout changes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from baton_engine.model.layers.linear import CompiledMethod, Linear, LinearMethod, PanelMethod, RowMethod
from baton_engine.model.layers.mlp import TILE_BYTES, GatedMlp
from baton_engine.model.layers.norm import pack_norm
from baton_kernels.dense.linear import packs_linear

torch.set_num_threads(1)  # compiled kernels compute on one
needs_vectors = pytest.mark.skipif(not packs_linear(torch.float32), reason="no AVX-512, or no LLVM")

METHODS = [RowMethod(), PanelMethod(), pytest.param(CompiledMethod(), marks=needs_vectors)]
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


@pytest.mark.parametrize("method", METHODS, ids=["rows", "panels", "compiled"])
@pytest.mark.parametrize("out_features", [1, 7, 255, 256, 8_192, 8_193, 9_000])
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_layout_multiplies_alike(method: LinearMethod, out_features: int, has_bias: bool) -> None:
    weight, bias = random(out_features, 24), random(out_features) if has_bias else None
    packed: Linear = method.pack(weight.clone(), bias)
    for rows in (1, 5, 70):
        x, total = random(rows, 24), random(rows, out_features)
        expected = functional.linear(x, weight, bias)
        torch.testing.assert_close(packed(x), expected)
        sums = total + expected
        packed.add_to(total, x)
        torch.testing.assert_close(total, sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_what_it_leaves_to_the_next_layer_make_rms_norm(dtype: torch.dtype) -> None:
    weight, x, residual = random(40).to(dtype), random(6, 40).to(dtype), random(6, 40).to(dtype)
    packed = pack_norm(weight, 1e-3, weight.dtype)
    scale = torch.ones(40, dtype=dtype) if packed.scale is None else packed.scale
    projection = RowMethod().pack(torch.eye(40, dtype=dtype), None)
    expected = functional.rms_norm(x + residual, (40,), weight, 1e-3)
    normed, total = packed.norm.after(projection, x, residual.clone())
    assert isinstance(normed, torch.Tensor)
    torch.testing.assert_close(normed * scale, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(packed.norm(total) * scale, normed * scale)


def test_a_row_of_zeros_is_normed_to_zeros() -> None:
    assert not pack_norm(torch.ones(8), 1e-6, torch.float32).norm(torch.zeros(2, 8)).any()


@needs_vectors
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (31, 33), (96, 100), (64, 352), (130, 2_048)])
@pytest.mark.parametrize("eps", [None, 1e-5])
def test_the_compiled_layer_is_as_exact_as_float32_for_any_shape(
    out_features: int, in_features: int, eps: float | None
) -> None:
    weight, bias = random(2 * out_features, in_features), random(2 * out_features)
    plain = CompiledMethod().pack(weight, bias, eps)
    gated = CompiledMethod().pack(weight, bias, eps, gated=True)
    for rows in (1, 2, 3, 7, 8, 15, 31, 48, 64, 65, 97, 1_100):
        x = random(rows, in_features)
        wide = x.double()
        normed = wide if eps is None else wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        expected = normed @ weight.double().t() + bias.double()
        atol = 1e-6 * in_features**0.5 * (normed.abs().amax().item() + 1)
        torch.testing.assert_close(plain(x).double(), expected, rtol=1e-5, atol=atol)
        gate, up = expected.chunk(2, -1)
        torch.testing.assert_close(
            gated.gated(x).double(), functional.silu(gate) * up, rtol=1e-5, atol=atol * (1 + gate.abs().amax().item())
        )


@needs_vectors
@pytest.mark.parametrize("rows", [3, 200])
def test_a_row_that_is_not_finite_leaves_the_others_alone_in_the_compiled_layer(rows: int) -> None:
    layer, x = CompiledMethod().pack(random(70, 40), None, 1e-6), random(rows, 40)
    clean = layer(x)
    x[1], x[2, 0] = float("nan"), float("inf")
    dirty = layer(x)
    assert dirty[1:3].isnan().all()
    others = [0, *range(3, rows)]
    assert torch.equal(dirty[others], clean[others])


@needs_vectors
def test_extreme_gates_neither_overflow_nor_vanish() -> None:
    gates = torch.tensor([-200.0, -100.0, -80.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 80.0, 100.0, 3e4])
    layer = CompiledMethod().pack(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), None, gated=True)
    got = layer.gated(torch.stack((gates, torch.ones(11)), 1))[:, 0]
    torch.testing.assert_close(got, functional.silu(gates), rtol=1e-6, atol=1e-32)


def test_an_mlp_over_more_rows_than_a_tile_adds_what_the_whole_one_gives() -> None:
    method, inner = PanelMethod(), 16_384
    layer = GatedMlp(method.pack(random(2 * inner, 4), None), method.pack(random(4, inner), None), inner)
    rows = 2 * TILE_BYTES // (2 * inner * 4) + 5
    x, total = random(rows, 4), random(rows, 4)
    expected = total + layer(x)
    layer.add_to(total, x)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)
