"""MXFP4's kernels of a token alone beside the formula: on a GPU, and elsewhere as PTX on a machine that runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from baton_kernels.experts import Mxfp4Stacks, biased_experts_reference, choose_experts_reference
from baton_kernels.mxfp4_weight import Mxfp4Stack, pack_mxfp4
from baton_testing.processes.child_process import run_to_end

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
LIMIT, ALPHA = 0.5, 1.702
"""A limit that many sums pass."""

SHAPES = [
    (1, 4, 4, 160, 96, 2),  # a line and a quarter; as many experts as threads of a row
    (2, 5, 3, 96, 160, 4),  # an odd number of experts; warps that have no line
    (1, 6, 2, 320, 32, 2),  # the last turn has one line for two warps
    (1, 3, 1, 64, 32, 1),
    (3, 8, 6, 32, 64, 1),  # experts in two groups
]
"""Tokens, experts, of them a token's, H, F, and warps."""

TESTS = Path(__file__).parents[1]
PROGRAM = f"""
import sys
sys.path += {[str(TESTS / "support"), str(TESTS / "kernels")]!r}
import test_token_mxfp4
from baton_testing.kernels.kernels_on_a_cpu import kernels_on_a_cpu
with kernels_on_a_cpu():
    for shape in test_token_mxfp4.SHAPES:
        print(test_token_mxfp4.relative_error(*shape, "cpu"))
"""


def stack(count: int, features: int, columns: int, generator: torch.Generator) -> Mxfp4Stack:
    codes = torch.randint(0, 16, (count, features, columns), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 124, (count, features, columns // 32), generator=generator).to(torch.uint8)
    return pack_mxfp4(codes, scales)


def moved(packed: Mxfp4Stack, device: str) -> Mxfp4Stack:
    return Mxfp4Stack(packed.values.to(device), packed.scales.to(device), packed.columns)


def relative_error(tokens: int, count: int, per_token: int, hidden: int, inner: int, warps: int, device: str) -> float:
    """Of the kernels' outputs, by the norm of the reference's."""
    from baton_kernels.gpu.token_mxfp4 import TokenConfig, token_experts_mxfp4

    generator = torch.Generator().manual_seed(hidden)
    gate_up, down = stack(count, 2 * inner, hidden, generator), stack(count, hidden, inner, generator)
    up_bias, down_bias = (torch.randn(count, n, generator=generator).bfloat16() for n in (2 * inner, hidden))
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    shares, experts = choose_experts_reference(torch.randn(tokens, count, generator=generator), per_token, True)
    got = token_experts_mxfp4(
        x.to(device), moved(gate_up, device), moved(down, device), (up_bias.to(device), down_bias.to(device)),
        shares.to(device), experts.to(device), LIMIT, ALPHA, TokenConfig(warps, 128, warps, 128),
    )  # fmt: skip
    stacks = Mxfp4Stacks(gate_up, up_bias, down, down_bias).dequantised(torch.float32)
    expected = biased_experts_reference(x, stacks, shares, experts, LIMIT, ALPHA).double()
    return float((got.cpu().double() - expected).norm() / expected.norm())


def test_what_is_compiled_equals_the_formula(tmp_path: Path) -> None:
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ended = run_to_end(["-c", PROGRAM], 300, environment)
    assert ended.code == 0, ended.stderr
    errors = [float(line) for line in ended.stdout.split()]
    assert len(errors) == len(SHAPES)
    assert max(errors) < 1e-3, errors


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("shape", [*SHAPES, (1, 8, 4, 2880, 2880, 4), (4, 8, 4, 2880, 1440, 8)], ids=str)
def test_a_gpu_computes_the_formula(shape: tuple[int, int, int, int, int, int]) -> None:
    assert relative_error(*shape, "cuda") < 4e-3
