"""Mixtures of experts: the router's choice, and the grouped products beside the formula."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.experts import choose_experts, experts_reference, grouped_experts

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9


def test_the_greatest_are_chosen_and_of_equals_the_lowest_number() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    shares, experts = choose_experts(logits, 2, normalised=True)
    assert experts.tolist() == [[1, 3], [0, 1]]
    torch.testing.assert_close(shares, torch.full((2, 2), 0.5))
    shares, _ = choose_experts(logits, 2, normalised=False)
    torch.testing.assert_close(shares[1], torch.full((2,), 0.25))


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("experts", "per_token", "hidden", "inner"), [(8, 2, 64, 96), (128, 8, 256, 64)])
@pytest.mark.parametrize("tokens", [1, 5, 64, 300])
def test_grouped_products_equal_the_formula(experts: int, per_token: int, hidden: int, inner: int, tokens: int) -> None:
    """Every token's experts; one of them is nobody's."""
    generator = torch.Generator("cuda").manual_seed(tokens)

    def draw(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device="cuda").mul_(float(shape[-1]) ** -0.5)
        return values.bfloat16()

    x, gate_up, down = draw(tokens, hidden) * 8, draw(experts, 2 * inner, hidden), draw(experts, hidden, inner)
    logits = torch.randn(tokens, experts, generator=generator, device="cuda")
    logits[:, 0] = -100.0
    shares, chosen = choose_experts(logits, per_token, normalised=True)
    expected = experts_reference(x, gate_up, down, shares, chosen)
    got = grouped_experts(x, gate_up, down, shares, chosen)
    torch.testing.assert_close(got.float(), expected.float(), atol=2e-2, rtol=2**-6)
    assert torch.equal(got, grouped_experts(x, gate_up, down, shares, chosen))
