"""MXFP4's kernels of few tokens beside the formula: on a GPU, and elsewhere as PTX on a machine that runs it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_kernels.dense.mxfp4_weight import pack_mxfp4
from baton_kernels.experts.expert_inputs import Mxfp4Stacks, Routing
from baton_kernels.experts.experts import choose_experts_reference, experts, experts_reference
from baton_testing.processes.prepared import Prepared

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
LIMIT, ALPHA = 0.5, 1.702
"""A limit that many sums pass."""

Shape = tuple[int, int, int, int, int, int]
SERVED = 0
SHAPES: list[Shape] = [
    (1, 4, 4, 160, 96, 2),  # a line and a quarter; as many experts as threads of a row
    (2, 5, 3, 96, 160, 4),  # an odd number of experts; warps that have no line
    (1, 6, 2, 320, 32, 2),  # the last turn has one line for two warps
    (1, 3, 1, 64, 32, 1),
    (3, 8, 6, 32, 64, 1),  # experts in two groups
    (2, 16, 4, 160, 96, SERVED),
]
"""Tokens, experts, of them a token's, H, F, and warps, or as they are served."""

TESTS = Path(__file__).parents[1]
PROGRAM = f"""
import sys
sys.path += {[str(TESTS / "support"), str(TESTS / "kernels")]!r}
import test_token_mxfp4
from baton_testing.kernels.kernels_on_a_cpu import kernels_on_a_cpu
with kernels_on_a_cpu():
    for shape in test_token_mxfp4.SHAPES:
        print(test_token_mxfp4.relative_error(shape, "cpu"))
"""


def stack(count: int, features: int, columns: int, generator: torch.Generator) -> Mxfp4Stack:
    codes = torch.randint(0, 16, (count, features, columns), generator=generator, dtype=torch.uint8)
    scales = torch.randint(118, 124, (count, features, columns // 32), generator=generator).to(torch.uint8)
    return pack_mxfp4(codes, scales)


def layer(count: int, hidden: int, inner: int, generator: torch.Generator) -> Mxfp4Stacks:
    gate_up, down = stack(count, 2 * inner, hidden, generator), stack(count, hidden, inner, generator)
    up_bias, down_bias = (torch.randn(count, n, generator=generator).bfloat16() for n in (2 * inner, hidden))
    return Mxfp4Stacks(gate_up, up_bias, down, down_bias, LIMIT, ALPHA)


def moved(stacks: Mxfp4Stacks, device: str) -> Mxfp4Stacks:
    gate_up, down = (
        Mxfp4Stack(packed.values.to(device), packed.scales.to(device), packed.columns)
        for packed in (stacks.gate_up, stacks.down)
    )
    biases = stacks.gate_up_bias.to(device), stacks.down_bias.to(device)
    return replace(stacks, gate_up=gate_up, down=down, gate_up_bias=biases[0], down_bias=biases[1])


def drawn(tokens: int, count: int, per_token: int, hidden: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Rows, shares and experts."""
    x = torch.randn(tokens, hidden, generator=generator).bfloat16()
    return x, *choose_experts_reference(torch.randn(tokens, count, generator=generator), per_token, True)


def distance(got: Tensor, stacks: Mxfp4Stacks, x: Tensor, shares: Tensor, chosen: Tensor) -> float:
    """Measure how far a result is from the formula's, by norms."""
    expected = experts_reference(x, stacks.dequantised(torch.float32), Routing(shares, chosen)).double()
    return float((got.cpu().double() - expected).norm() / expected.norm())


def relative_error(shape: Shape, device: str) -> float:
    from baton_kernels.experts.gpu.token_mxfp4 import TokenConfig, token_experts_mxfp4

    tokens, count, per_token, hidden, inner, warps = shape
    generator = torch.Generator().manual_seed(hidden)
    stacks = layer(count, hidden, inner, generator)
    given = drawn(tokens, count, per_token, hidden, generator)
    x, shares, chosen = (tensor.to(device) for tensor in given)
    there, routing = moved(stacks, device), Routing(shares, chosen)
    if warps == SERVED:
        got = experts(x, there, routing)
    else:
        got = token_experts_mxfp4(x, there, routing, TokenConfig(warps, 128, warps, 128))
    return distance(got, stacks, *given)


def test_what_is_compiled_equals_the_formula(compiler: Prepared, tmp_path: Path) -> None:
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ended = compiler.run_to_end(["-c", PROGRAM], 300, environment)
    assert ended.code == 0, ended.stderr
    errors = [float(line) for line in ended.stdout.split()]
    assert len(errors) == len(SHAPES)
    assert max(errors) < 1e-3, errors


@pytest.mark.parametrize(("count", "per_token", "most"), [(32, 4, 4), (128, 4, 7), (8, 2, 2), (4, 4, 1)])
def test_tokens_are_read_alone_while_experts_are_twice_their_few_pairs(count: int, per_token: int, most: int) -> None:
    pytest.importorskip("triton")
    from baton_kernels.experts.gpu.token_mxfp4 import reads_alone

    assert [tokens for tokens in range(1, 40) if reads_alone(tokens, per_token, count)] == [*range(1, most + 1)]


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("shape", [*SHAPES, (1, 8, 4, 2880, 2880, SERVED), (4, 32, 4, 2880, 1440, SERVED)], ids=str)
def test_a_gpu_computes_the_formula(shape: Shape) -> None:
    assert relative_error(shape, "cuda") < 4e-3


@pytest.mark.gpu
@pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize("tokens", [1, 4, 5])
def test_a_graph_computes_what_it_is_given_later(tokens: int) -> None:
    """Each replay has other rows and other experts; two layers in turn use the same memory between."""
    count, hidden, inner = 32, 320, 160
    generator = torch.Generator().manual_seed(tokens)
    stacks = [layer(count, hidden, inner, generator) for _ in range(2)]
    there = [moved(one, "cuda") for one in stacks]
    held = tuple(tensor.cuda() for tensor in drawn(tokens, count, 4, hidden, generator))

    def work() -> list[Tensor]:
        return [experts(held[0], one, Routing(held[1], held[2])) for one in there]

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    for _ in range(3):
        given = drawn(tokens, count, 4, hidden, generator)
        for place, tensor in zip(held, given, strict=True):
            place.copy_(tensor)
        graph.replay()
        torch.cuda.synchronize()
        assert max(distance(got, one, *given) for got, one in zip(out, stacks, strict=True)) < 4e-3
