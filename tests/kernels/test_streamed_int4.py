"""Products of tens of rows with 4-bit weights beside the weight brought back."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.dense.quantised_weight import GROUP, dequantise, pack_int4
from baton_kernels.dense.swiglu import swiglu

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("features", "columns", "gated"),
    [(256, 256, True), (512, 384, False), (1000, 1280, False), (4096, 4096, False), (96, 640, True)],
)
@pytest.mark.parametrize("rows", [1, 33, 64, 100, 128, 160, 200, 256, 300])
def test_tens_of_rows_equal_the_formula(
    features: int, columns: int, gated: bool, rows: int, zeros: bool, bias: bool
) -> None:
    """Padded lines, groups of nothing, features between tiles; with and without splits, and bit by bit again."""
    from baton_kernels.dense.gpu.streamed_int4 import MAX_ROWS, Int4Config, multiply, streamed_int4

    generator = torch.Generator("cuda").manual_seed(rows)
    groups = (features, columns // GROUP)
    values = torch.randint(0, 16, (features, columns), dtype=torch.uint8, device="cuda", generator=generator)
    zero = torch.randint(0, 16, groups, device="cuda", generator=generator) if zeros else None
    weight = pack_int4(values, torch.rand(groups, device="cuda", generator=generator) / 1e2, zero)
    shift = torch.randn(features, device="cuda", generator=generator).bfloat16() if bias else None
    x = torch.randn(rows, columns, device="cuda", generator=generator).bfloat16()
    wide = dequantise(weight, torch.bfloat16).float()
    expected = torch.nn.functional.linear(x.float(), wide, None if shift is None else shift.float()).bfloat16()
    expected = swiglu(expected) if gated else expected

    results = [streamed_int4(x, weight, shift, gated) for _ in range(2)]
    assert torch.equal(*results)
    if rows <= MAX_ROWS and not gated:
        results += [torch.empty_like(results[0])]
        multiply(x, weight, shift, gated, results[2], Int4Config(3, 3))
    for got in results:
        assert (got.float() - expected.float()).norm() <= 5e-3 * expected.float().norm()
