"""Stacks of experts with weights of 8 and 4 bits: stacked and brought back, and the streamed product by the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.dense.quantised_stack import QuantisedStack, dequantise_stack, stacked
from baton_kernels.dense.quantised_weight import QuantisedWeight, dequantise, pack_fp8, pack_int4, pack_int8

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
FORMS = ("block", "channel", "int8 channel", "int4", "int4 zeros")


def draw(form: str, count: int, features: int, columns: int, device: str) -> list[QuantisedWeight]:
    generator = torch.Generator().manual_seed(features + columns)

    def one() -> QuantisedWeight:
        groups = (features, columns // 128)
        shape = {"block": (features // 128, columns // 128), "int4": groups, "int4 zeros": groups}.get(
            form, (features,)
        )
        scale = ((torch.rand(shape, generator=generator) + 0.5) * columns**-0.5).to(device)
        if form == "int8 channel":
            codes = torch.randint(-128, 128, (features, columns), generator=generator, dtype=torch.int8)
            return pack_int8(codes.to(device), scale / 60)
        if form.startswith("int4"):
            codes = torch.randint(0, 16, (features, columns), generator=generator, dtype=torch.uint8)
            zeros = torch.randint(0, 16, groups, generator=generator).to(device) if form == "int4 zeros" else None
            return pack_int4(codes.to(device), scale / 5, zeros)
        values = torch.randn(features, columns, generator=generator).to(torch.float8_e4m3fn)
        return pack_fp8(values.to(device), scale)

    return [one() for _ in range(count)]


@pytest.mark.parametrize("form", FORMS)
def test_what_was_stacked_comes_back(form: str) -> None:
    parts = draw(form, 3, 256, 384, "cpu")
    stack = stacked(parts, 2)
    assert stack is not None
    assert stack.has_blocks == (form == "block")
    assert torch.equal(
        dequantise_stack(stack, torch.float32), torch.stack([dequantise(p, torch.float32) for p in parts])
    )


def test_what_no_stack_holds_is_none() -> None:
    """Unlike parts, blocks that reach into gate and up, groups of 8 bits, an order of columns."""
    channel, blocks = draw("channel", 1, 256, 256, "cpu"), draw("block", 1, 384, 256, "cpu")
    assert stacked([*channel, *draw("int8 channel", 1, 256, 256, "cpu")], 1) is None
    assert stacked([*channel, *draw("block", 1, 256, 256, "cpu")], 1) is None
    assert stacked(blocks, 1) is not None
    assert stacked(blocks, 2) is None
    codes = torch.zeros(256, 256, dtype=torch.int8)
    assert stacked([pack_int8(codes, torch.ones(256, 2))], 1) is None
    assert stacked([pack_int8(codes, torch.ones(256), torch.arange(256))], 1) is None
    four = pack_int4(codes, torch.ones(256, 2)), pack_int4(codes, torch.ones(256, 2), torch.ones(256, 2))
    assert stacked(four, 1) is None
    assert stacked([pack_int4(codes, torch.ones(256, 2), order=torch.arange(256))], 1) is None


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("count", "per_token", "hidden", "inner"), [(8, 3, 128, 128), (5, 2, 256, 384), (128, 8, 2048, 768)]
)
@pytest.mark.parametrize("tokens", [1, 7, 130, 700, 5000, 9000])
def test_streamed_experts_equal_the_formula(
    form: str, count: int, per_token: int, hidden: int, inner: int, tokens: int
) -> None:
    """With rows of 16 bits, whatever their number: `test_rounded_stacks.py` has those of 8."""
    from baton_kernels.experts.expert_inputs import QuantisedStacks
    from baton_kernels.experts.experts import choose_experts
    from baton_kernels.experts.gpu.streamed_stacks import quantised_experts_gluon, stack_config

    gate_up = stacked(draw(form, count, 2 * inner, hidden, "cuda"), 2)
    down = stacked(draw(form, count, hidden, inner, "cuda"), 1)
    assert gate_up is not None
    assert down is not None
    generator = torch.Generator("cuda").manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=generator, device="cuda").bfloat16()
    logits = torch.randn(tokens, count, generator=generator, device="cuda")
    stacks, routing = QuantisedStacks(gate_up, down), choose_experts(logits, per_token, normalised=True)
    config = stack_config(routing.pairs, count, gate_up.has_blocks, min(gate_up.bits, down.bits))
    got = quantised_experts_gluon(x, stacks, routing, config)
    for _ in range(5):
        assert torch.equal(got, quantised_experts_gluon(x, stacks, routing, config))
    assert_formula(got, x, gate_up, down, *routing)


def assert_formula(
    got: Tensor, x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor
) -> None:
    """Within what rounding the middle and each expert's output to bfloat16 leaves."""
    wide_gate_up, wide_down = dequantise_stack(gate_up, torch.float32), dequantise_stack(down, torch.float32)
    total = torch.zeros(x.shape, device=x.device, dtype=torch.float64)
    for expert in range(len(wide_down)):
        gate, up = (x.double() @ wide_gate_up[expert].double().t()).bfloat16().double().chunk(2, -1)
        inside = (torch.nn.functional.silu(gate).bfloat16().double() * up).bfloat16().double()
        out = (inside @ wide_down[expert].double().t()).bfloat16().double()
        total += out * (shares.double() * (experts == expert)).sum(1)[:, None]
    assert float((got.double() - total).norm() / total.norm()) < 4e-3
