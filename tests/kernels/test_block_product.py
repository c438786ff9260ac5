"""Products of few rows with weights in blocks of e4m3: beside the formula, and the same bits each time."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.dense.quantised_weight import dequantise, pack_fp8

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


def test_columns_are_shared_where_outputs_are_few_and_columns_many() -> None:
    pytest.importorskip("triton")
    from baton_kernels.dense.gpu.block_product import pays, splits_of_columns

    shapes = {(4096, 14336): 4, (4096, 4096): 2, (6144, 4096): 2, (28672, 4096): 1, (1024, 2048): 1, (128, 65536): 8}
    assert {shape: splits_of_columns(*shape) for shape in shapes} == shapes
    assert [pays(rows, 4096, 14336) for rows in (65, 128, 129)] == [True, True, False]
    assert not pays(128, 6144, 4096)
    assert not pays(128, 1024, 2048)


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("features", "columns"), [(4096, 14336), (4096, 4096), (640, 6656), (128, 4608), (1280, 2048)])
@pytest.mark.parametrize("rows", [1, 65, 97, 127, 128])
def test_parts_add_up_to_the_product_of_the_codes(features: int, columns: int, rows: int) -> None:
    from baton_kernels.dense.gpu.block_product import block_product
    from baton_kernels.dense.gpu.rounded_activations import quantise_groups
    from baton_kernels.dense.quantised_weight import column_order

    generator = torch.Generator("cuda").manual_seed(rows + columns)
    values = torch.randn(features, columns, generator=generator, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.rand(features // 128, columns // 128, generator=generator, device="cuda") + 0.01
    weight = pack_fp8(values, scale)
    x = torch.randn(rows, columns, generator=generator, device="cuda").bfloat16()
    codes, scales = quantise_groups(x)
    got = block_product(codes, scales, weight, rows, torch.bfloat16)
    assert all(torch.equal(block_product(codes, scales, weight, rows, torch.bfloat16), got) for _ in range(10))
    stored = column_order(codes[:rows].view(torch.uint8)).view(torch.float8_e4m3fn)
    wide = stored.double() * scales[:rows].double().repeat_interleave(128, 1)
    expected = wide @ dequantise(weight, torch.float32).double().t()
    assert (got.double() - expected).norm() <= 3e-3 * expected.norm()
