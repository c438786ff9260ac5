"""Both products of a token's experts in one kernel beside the formula: one program in the interpreter, all on a GPU."""

from __future__ import annotations

import pytest
import torch

from baton_kernels.experts import choose_experts_reference, experts_reference


@pytest.mark.parametrize(
    ("count", "per_token", "hidden", "inner", "features", "outputs"),
    [(4, 2, 48, 20, 2, 1), (6, 3, 40, 17, 4, 2), (9, 8, 16, 6, 2, 4), (3, 1, 24, 40, 8, 2)],
)
def test_both_products_equal_the_formula(
    triton_device: str, count: int, per_token: int, hidden: int, inner: int, features: int, outputs: int
) -> None:
    from baton_kernels.gpu.joint_experts import JointConfig, joint_experts_triton

    generator = torch.Generator().manual_seed(hidden)
    x = torch.randn(1, hidden, generator=generator).to(triton_device)
    gate_up = torch.randn(count, 2 * inner, hidden, generator=generator).to(triton_device) * hidden**-0.5
    down = torch.randn(count, hidden, inner, generator=generator).to(triton_device) * inner**-0.5
    shares, experts = choose_experts_reference(
        torch.randn(1, count, generator=generator).to(triton_device), per_token, True
    )
    arrived = torch.zeros(2, dtype=torch.int32, device=triton_device)
    expected = experts_reference(x, gate_up, down, shares, experts)
    config = JointConfig(features, outputs, 4, 2)
    programs = 64 if triton_device == "cuda" else 1  # the interpreter runs one after the other
    for _ in range(2):
        got = joint_experts_triton(x, gate_up, down, shares, experts, arrived, config, programs)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
        assert arrived.tolist() == [0, 0]
