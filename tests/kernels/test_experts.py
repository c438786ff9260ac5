"""Mixtures of experts: the router's choice, and the grouped products beside the formula."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.experts.expert_inputs import PlainStacks
from baton_kernels.experts.experts import choose_experts, choose_experts_reference, experts, experts_reference

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


def test_the_greatest_are_chosen_and_of_equals_the_lowest_number() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    shares, chosen = choose_experts(logits, 2, normalised=True)
    assert chosen.tolist() == [[1, 3], [0, 1]]
    torch.testing.assert_close(shares, torch.full((2, 2), 0.5))
    shares, _ = choose_experts(logits, 2, normalised=False)
    torch.testing.assert_close(shares[1], torch.full((2,), 0.25))


@pytest.mark.parametrize(("count", "per_token"), [(4, 2), (6, 3), (128, 8)])
@pytest.mark.parametrize("normalised", [True, False])
def test_the_routing_kernel_equals_the_formula(
    triton_device: str, count: int, per_token: int, normalised: bool
) -> None:
    from baton_kernels.experts.gpu.experts import choose_experts_triton

    logits = torch.randint(-9, 9, (7, count), generator=torch.Generator().manual_seed(1)).float().to(triton_device)
    shares, chosen = choose_experts_triton(logits, per_token, normalised)
    expected_shares, expected = choose_experts_reference(logits, per_token, normalised)
    assert torch.equal(chosen, expected)
    torch.testing.assert_close(shares, expected_shares)


@pytest.mark.parametrize(
    ("count", "per_token", "hidden"), [(3, 1, 40), (4, 2, 48), (6, 3, 300), (130, 8, 2880), (256, 8, 64)]
)
@pytest.mark.parametrize("biased", [True, False])
def test_a_token_alone_is_routed_as_the_formula_says(
    triton_device: str, count: int, per_token: int, hidden: int, biased: bool
) -> None:
    from baton_kernels.experts.gpu.experts import route_token_triton

    generator = torch.Generator().manual_seed(3)
    x, weight, bias = (
        torch.randint(-4, 5, shape, generator=generator).float().to(triton_device)
        for shape in ((1, hidden), (count, hidden), (count,))
    )
    logits = x @ weight.t() / 64 + (bias / 64 if biased else 0)
    expected_shares, expected = choose_experts_reference(logits, per_token, True)
    arrived = torch.zeros(1, dtype=torch.int32, device=triton_device)
    for _ in range(2):
        shares, chosen = route_token_triton(x / 64, weight, bias / 64 if biased else None, per_token, True, arrived)
        assert torch.equal(chosen, expected)
        torch.testing.assert_close(shares, expected_shares)
        assert arrived.item() == 0


@pytest.mark.parametrize(
    ("count", "per_token", "hidden", "inner"), [(4, 2, 48, 80), (6, 3, 300, 17), (9, 8, 32, 300), (3, 1, 40, 24)]
)
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_the_kernel_of_few_tokens_equals_the_formula(
    triton_device: str, count: int, per_token: int, hidden: int, inner: int, tokens: int
) -> None:
    from baton_kernels.experts.gpu.experts import few_experts_triton

    generator = torch.Generator().manual_seed(2)
    x = torch.randn(tokens, hidden, generator=generator).to(triton_device)
    gate_up = torch.randn(count, 2 * inner, hidden, generator=generator).to(triton_device) * hidden**-0.5
    down = torch.randn(count, hidden, inner, generator=generator).to(triton_device) * inner**-0.5
    logits = torch.randn(tokens, count, generator=generator).to(triton_device)
    stacks, routing = PlainStacks(gate_up, down), choose_experts_reference(logits, per_token, True)
    got = few_experts_triton(x, stacks, routing)
    torch.testing.assert_close(got, experts_reference(x, stacks, routing), atol=1e-4, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("count", "per_token", "hidden", "inner"), [(8, 2, 64, 96), (128, 8, 256, 64)])
@pytest.mark.parametrize("tokens", [1, 4, 5, 64, 300])
@pytest.mark.parametrize("streams", [True, False])
def test_grouped_products_equal_the_formula(
    count: int, per_token: int, hidden: int, inner: int, tokens: int, streams: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One expert is taken by no token. Products are streamed, or the library's."""
    if not streams:
        monkeypatch.setattr("baton_kernels.experts.gpu.streamed_experts.LIBRARY_BEYOND", 0)
    generator = torch.Generator("cuda").manual_seed(tokens)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device="cuda").mul_(float(shape[-1]) ** -0.5)
        return values.bfloat16()

    x = draw(tokens, hidden) * 8
    stacks = PlainStacks(draw(count, 2 * inner, hidden), draw(count, hidden, inner))
    logits = torch.randn(tokens, count, generator=generator, device="cuda")
    logits[:, 0] = -100.0
    routing = choose_experts(logits, per_token, normalised=True)
    expected = experts_reference(x, stacks, routing)
    got = experts(x, stacks, routing)
    torch.testing.assert_close(got.float(), expected.float(), atol=2e-2, rtol=2**-6)
    assert torch.equal(got, experts(x, stacks, routing))


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("tokens", [300, 2000])
def test_small_and_large_tiles_give_the_same_sums_each_time(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from baton_kernels.experts.gpu import streamed_experts

    generator = torch.Generator("cuda").manual_seed(tokens)
    x, gate_up, down = (
        torch.randn(*shape, generator=generator, device="cuda").bfloat16()
        for shape in ((tokens, 1000), (8, 2 * 760, 1000), (8, 1000, 760))
    )
    monkeypatch.setattr(streamed_experts, "LIBRARY_BEYOND", 1 << 20)
    stacks = PlainStacks(gate_up, down)
    routing = choose_experts(torch.randn(tokens, 8, generator=generator, device="cuda"), 3, normalised=True)
    first: torch.Tensor | None = None
    for few in (1 << 20, 0):
        monkeypatch.setattr(streamed_experts, "LARGE_TILES_FROM", few)
        for _ in range(10):
            got = experts(x, stacks, routing)
            first = got if first is None else first
            assert torch.equal(got, first)
