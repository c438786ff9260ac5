"""Gates other than silu's: references against torch, backends against the references, and experts with biases."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.dense.gated_activations import clamped_gate, clamped_gate_reference, geglu, geglu_reference


def projected(rows: int, features: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (4 * torch.randn(rows, 2 * features, generator=generator)).to(dtype)


def test_the_reference_of_geglu_is_torchs_formula() -> None:
    x = projected(5, 37, torch.float32)
    gate, up = x.chunk(2, -1)
    expected = torch.nn.functional.gelu(gate, approximate="tanh") * up
    torch.testing.assert_close(geglu_reference(x), expected, atol=1e-5, rtol=1e-5)


def test_a_clamped_gate_bounds_gate_and_up() -> None:
    x = torch.tensor([[100.0, -100.0, 1.0, 100.0, -100.0, 0.5]])  # gates 100, -100, 1; ups 100, -100, 0.5
    got = clamped_gate_reference(x, 7.0, 1.702)
    one = torch.tensor(1.702).sigmoid()
    expected = torch.tensor([[7.0 * torch.tensor(7.0 * 1.702).sigmoid() * 8.0, 0.0, one * 1.5]])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (3, 37), (2, 1030)], ids=str)
def test_backends_equal_the_references(triton_device: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    from baton_kernels.dense.gpu.gated_activations import clamped_gate_triton, geglu_triton

    x = projected(*shape, dtype)
    atol, rtol = (1e-5, 1e-5) if dtype == torch.float32 else (1e-2, 2**-7)
    for expected, *got in (
        (geglu_reference(x), geglu(x), geglu_triton(x.to(triton_device)).cpu()),
        (
            clamped_gate_reference(x, 2.5, 1.702),
            clamped_gate(x, 2.5, 1.702),
            clamped_gate_triton(x.to(triton_device), 2.5, 1.702).cpu(),
        ),
    ):
        for result in got:
            torch.testing.assert_close(result, expected, atol=atol, rtol=rtol)


IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("tokens", [1, 7, 130])
@pytest.mark.parametrize("streams", [True, False])
def test_biased_experts_equal_the_reference(tokens: int, streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not streams:
        monkeypatch.setattr("baton_kernels.experts.gpu.expert_sort.MAX_PAIRS", 0)
    from baton_kernels.experts.expert_inputs import BiasedStacks
    from baton_kernels.experts.experts import choose_experts, experts, experts_reference

    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).mul_(0.2).to("cuda", torch.bfloat16)

    hidden, inner, count = 96, 64, 8
    tensors = (draw(count, 2 * inner, hidden), draw(count, 2 * inner), draw(count, hidden, inner), draw(count, hidden))
    stacks = BiasedStacks(*tensors, limit=1.0, alpha=1.702)
    x = draw(tokens, hidden) * 5
    routing = choose_experts(draw(tokens, count), 3, True)
    got = experts(x, stacks, routing)
    expected = experts_reference(x, stacks, routing)
    torch.testing.assert_close(got.float(), expected.float(), atol=2e-2, rtol=2e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("streams", [True, False])
def test_experts_that_no_kernel_has_chosen_stop_no_device(streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels are compiled and not launched, routing leaves what memory held."""
    if not streams:
        monkeypatch.setattr("baton_kernels.experts.gpu.expert_sort.MAX_PAIRS", 0)
    from baton_kernels.ahead.compiling import compiled_together
    from baton_kernels.experts.expert_inputs import BiasedStacks, Routing
    from baton_kernels.experts.experts import experts

    def draw(*shape: int) -> Tensor:
        return torch.ones(*shape, dtype=torch.bfloat16, device="cuda")

    stacks = BiasedStacks(draw(8, 128, 96), draw(8, 128), draw(8, 96, 64), draw(8, 96), 1.0, 1.702)
    with compiled_together():
        experts(draw(40, 96), stacks, Routing(draw(40, 3).float(), torch.full((40, 3), 1 << 50).cuda()))
        torch.cuda.synchronize()
