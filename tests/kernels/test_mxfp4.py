"""Stacks in MXFP4: packed and back, and the streamed product beside the formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.dense.mxfp4_weight import dequantise_mxfp4_reference, pack_mxfp4

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def draw(experts: int, features: int, columns: int, device: str, spread: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales, and W in float64 by indexes alone; drawn on the CPU, where powers of two are exact."""
    generator = torch.Generator().manual_seed(columns)
    codes = torch.randint(0, 16, (experts, features, columns), generator=generator, dtype=torch.uint8)
    scales = torch.randint(120 - spread, 120, (experts, features, columns // 32), generator=generator).to(torch.uint8)
    values = torch.tensor(E2M1, dtype=torch.float64)[codes.int()]
    powers = torch.pow(2.0, scales.double() - 127)
    weight = values * powers[:, :, torch.arange(columns) // 32]
    return codes.to(device), scales.to(device), weight.to(device)


@pytest.mark.parametrize(("features", "columns"), [(7, 32), (16, 160), (20, 256)])
def test_what_was_packed_comes_back(features: int, columns: int) -> None:
    codes, scales, weight = draw(3, features, columns, "cpu", spread=100)
    assert torch.equal(dequantise_mxfp4_reference(pack_mxfp4(codes, scales)).double(), weight)


@pytest.mark.parametrize(("features", "columns"), [(7, 32), (16, 160), (20, 256)])
def test_the_kernel_brings_it_back(triton_device: str, features: int, columns: int) -> None:
    from baton_kernels.dense.gpu.dequantise import mxfp4_triton

    codes, scales, weight = draw(2, features, columns, triton_device)
    scales[0, 0, 0], scales[0, 1, 0] = 0, 250
    stack = pack_mxfp4(codes, scales)
    assert torch.equal(mxfp4_triton(stack, torch.float32), dequantise_mxfp4_reference(stack))
    assert torch.equal(mxfp4_triton(stack, torch.bfloat16)[1].double(), weight[1])


def test_shapes_that_do_not_fit_are_refused() -> None:
    codes, scales, _ = draw(2, 8, 64, "cpu")
    with pytest.raises(ValueError, match=r"have shapes \[2, 8, 64\] and \[2, 8, 1\]; allowed are"):
        pack_mxfp4(codes, scales[:, :, :1])
    with pytest.raises(ValueError, match="allowed are"):
        pack_mxfp4(codes[:, :, :48], scales)


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(
    ("count", "per_token", "hidden", "inner"), [(8, 3, 96, 64), (5, 2, 320, 160), (4, 1, 2880, 96)]
)
@pytest.mark.parametrize("tokens", [1, 7, 30, 60, 130, 300, 700, 1500, 5000])
def test_streamed_experts_equal_the_formula(count: int, per_token: int, hidden: int, inner: int, tokens: int) -> None:
    from baton_kernels.experts.expert_inputs import Mxfp4Stacks
    from baton_kernels.experts.experts import choose_experts, experts

    def small(*shape: int) -> Tensor:
        generator = torch.Generator("cuda").manual_seed(len(shape) + tokens)
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    gate_codes, gate_scales, gate_up = draw(count, 2 * inner, hidden, "cuda")
    down_codes, down_scales, down = draw(count, hidden, inner, "cuda")
    biases = small(count, 2 * inner), small(count, hidden)
    packed_gate_up, packed_down = pack_mxfp4(gate_codes, gate_scales), pack_mxfp4(down_codes, down_scales)
    stacks = Mxfp4Stacks(packed_gate_up, biases[0], packed_down, biases[1], 7.0, 1.702)
    x = small(tokens, hidden)
    routing = choose_experts(small(tokens, count).float(), per_token, normalised=True)
    got = experts(x, stacks, routing)
    assert torch.equal(got, experts(x, stacks, routing))
    total = torch.zeros(tokens, hidden, device="cuda", dtype=torch.float64)
    for expert in range(count):
        gate, up = (x.double() @ gate_up[expert].t() + biases[0][expert].double()).bfloat16().double().chunk(2, -1)
        gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
        inside = (gate * torch.sigmoid(1.702 * gate) * (up + 1)).bfloat16().double()
        out = (inside @ down[expert].t() + biases[1][expert].double()).bfloat16().double()
        total += out * (routing.shares.double() * (routing.experts == expert)).sum(1)[:, None]
    assert (got.double() - total).norm() <= 8e-3 * total.norm()


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("tokens", [300, 2000])
def test_every_tile_gives_the_same_sums_each_time(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers of an operand that is still being multiplied must not be used again: that showed in some runs only."""
    from baton_kernels.experts.expert_inputs import Mxfp4Stacks
    from baton_kernels.experts.experts import choose_experts, experts
    from baton_kernels.experts.gpu import streamed_mxfp4
    from baton_kernels.experts.gpu.streamed_mxfp4 import LARGE_TILES, SMALL_TILES

    count, hidden, inner = 8, 2880, 1440
    gate_codes, gate_scales, _ = draw(count, 2 * inner, hidden, "cuda")
    down_codes, down_scales, _ = draw(count, hidden, inner, "cuda")
    gate_up, down = pack_mxfp4(gate_codes, gate_scales), pack_mxfp4(down_codes, down_scales)
    generator = torch.Generator("cuda").manual_seed(tokens)
    x = torch.randn(tokens, hidden, generator=generator, device="cuda").bfloat16()
    biases = [torch.zeros(count, features, device="cuda").bfloat16() for features in (2 * inner, hidden)]
    stacks = Mxfp4Stacks(gate_up, biases[0], down, biases[1], 7.0, 1.702)
    routing = choose_experts(torch.randn(tokens, count, generator=generator, device="cuda"), 4, True)
    sums = list[Tensor]()
    for config in (*SMALL_TILES.values(), LARGE_TILES):
        monkeypatch.setattr(streamed_mxfp4, "mxfp4_config", lambda pairs, count, config=config: config)
        sums.append(experts(x, stacks, routing))
        for _ in range(10):
            assert torch.equal(experts(x, stacks, routing), sums[-1])
    for others in sums[1:]:
        assert (others.float() - sums[0].float()).norm() <= 2e-3 * sums[0].float().norm()


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
def test_more_pairs_than_are_sorted_at_once_give_the_sums_of_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    from baton_kernels.experts.expert_inputs import Mxfp4Stacks
    from baton_kernels.experts.experts import choose_experts, experts
    from baton_kernels.experts.gpu import expert_sort

    count, hidden, inner, tokens = 8, 320, 160, 1500
    gate_codes, gate_scales, _ = draw(count, 2 * inner, hidden, "cuda")
    down_codes, down_scales, _ = draw(count, hidden, inner, "cuda")
    gate_up, down = pack_mxfp4(gate_codes, gate_scales), pack_mxfp4(down_codes, down_scales)
    generator = torch.Generator("cuda").manual_seed(3)
    biases = [torch.randn(count, size, generator=generator, device="cuda").bfloat16() for size in (2 * inner, hidden)]
    x = torch.randn(tokens, hidden, generator=generator, device="cuda").bfloat16()
    stacks = Mxfp4Stacks(gate_up, biases[0], down, biases[1], 7.0, 1.702)
    routing = choose_experts(torch.randn(tokens, count, generator=generator, device="cuda"), 3, True)
    whole = experts(x, stacks, routing)
    monkeypatch.setattr(expert_sort, "MAX_PAIRS", 1000)
    assert torch.equal(experts(x, stacks, routing), whole)


def test_no_piece_of_many_pairs_is_larger_than_what_is_sorted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from baton_kernels.experts import experts
    from baton_kernels.experts.expert_inputs import Mxfp4Stacks, Routing
    from baton_kernels.experts.gpu import expert_sort, streamed_mxfp4

    sorted_at_once = list[int]()

    def record(x: Tensor, stacks: Mxfp4Stacks, routing: Routing, out: Tensor) -> None:
        sorted_at_once.append(routing.pairs)
        out.copy_(x)

    monkeypatch.setattr(expert_sort, "MAX_PAIRS", 1000)
    monkeypatch.setattr(streamed_mxfp4, "mxfp4_experts", record)
    codes, scales, _ = draw(4, 64, 32, "cpu")
    stack = pack_mxfp4(codes, scales)
    stacks = Mxfp4Stacks(stack, torch.zeros(4, 64), stack, torch.zeros(4, 64), 7.0, 1.702)
    x = torch.randn(1000, 32)
    routing = Routing(torch.ones(1000, 3), torch.zeros(1000, 3, dtype=torch.int64))
    assert torch.equal(experts.experts(x, stacks, routing), x)
    assert sum(sorted_at_once) == routing.pairs
    assert max(sorted_at_once) <= 1000
