"""Layers in the CPU's own layout compute what their plain formulas say, at widths where the layout changes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from baton_engine.layers.linear import Linear, LinearMethod, PanelMethod, RowMethod
from baton_engine.layers.mlp import TILE_BYTES, GatedMlp
from baton_engine.layers.norm import pack_norm

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


@pytest.mark.parametrize("method", [RowMethod(), PanelMethod()], ids=["rows", "panels"])
@pytest.mark.parametrize("out_features", [1, 7, 255, 256, 8_192, 8_193, 9_000])
@pytest.mark.parametrize("has_bias", [False, True])
def test_every_layout_multiplies_alike(method: LinearMethod, out_features: int, has_bias: bool) -> None:
    weight, bias = random(out_features, 24), random(out_features) if has_bias else None
    packed: Linear = method.pack(weight.clone(), bias)
    for rows in (1, 5):
        x, total = random(rows, 24), random(rows, out_features)
        expected = functional.linear(x, weight, bias)
        torch.testing.assert_close(packed(x), expected)
        sums = total + expected
        packed.add_to(total, x)
        torch.testing.assert_close(total, sums)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_norm_and_what_it_leaves_to_the_next_layer_make_rms_norm(dtype: torch.dtype) -> None:
    weight, x, residual = random(40).to(dtype), random(6, 40).to(dtype), random(6, 40).to(dtype)
    packed = pack_norm(weight, 1e-3)
    scale = torch.ones(40, dtype=dtype) if packed.scale is None else packed.scale
    projection = RowMethod().pack(torch.eye(40, dtype=dtype), None)
    expected = functional.rms_norm(x + residual, (40,), weight, 1e-3)
    normed, total = packed.norm.after(projection, x, residual.clone())
    torch.testing.assert_close(normed * scale, expected, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    torch.testing.assert_close(total, x + residual)
    torch.testing.assert_close(packed.norm(total) * scale, normed * scale)


def test_a_row_of_zeros_is_normed_to_zeros() -> None:
    assert not pack_norm(torch.ones(8), 1e-6).norm(torch.zeros(2, 8)).any()


def test_an_mlp_over_more_rows_than_a_tile_adds_what_the_whole_one_gives() -> None:
    method, inner = PanelMethod(), 16_384
    layer = GatedMlp(method.pack(random(2 * inner, 4), None), method.pack(random(4, inner), None), inner)
    rows = 2 * TILE_BYTES // (2 * inner * 4) + 5
    x, total = random(rows, 4), random(rows, 4)
    expected = total + layer(x)
    layer.add_to(total, x)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-3)
