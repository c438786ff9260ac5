"""Experts in MXFP4 in CUDA graphs: ways that are not served against those that are, compared with the formula.

The shape of gpt-oss-20b, experts drawn at random, routing not counted. A graph goes through several layers, which are
more bytes than the L2 cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

import torch
from bench.engine.gpu_model import GPU, graph_us
from bench.kernels.gpu import Row, row
from torch import Tensor
from triton.errors import TritonError

from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.dense.mxfp4_stack import LINE_COLUMNS, Mxfp4Stack
from baton_kernels.dense.mxfp4_weight import pack_mxfp4
from baton_kernels.experts.expert_inputs import Mxfp4Stacks, Routing
from baton_kernels.experts.experts import experts
from baton_kernels.experts.gpu.streamed_mxfp4 import (
    LARGE_TILES,
    SMALL_TILES,
    Mxfp4Config,
    mxfp4_config,
    mxfp4_experts,
)
from baton_kernels.experts.gpu.token_mxfp4 import SERVED, TokenConfig, token_experts_mxfp4

COUNT, PER_TOKEN, HIDDEN, INNER = 32, 4, 2880, 2880
LIMIT, ALPHA = 7.0, 1.702
LAYERS: Final = 4
DRAWS: Final = 2
"""Draws of experts for each layer."""
REPEATS: Final = 10
ALONE: Final = (
    SERVED,
    *(replace(SERVED, down_warps=warps, down_registers=most) for warps, most in ((4, 128), (8, 80))),
)
"""One configuration appears twice, once as what is served: the difference shows how steady times are."""
FEW: Final = (1, 2, 4, 8)
TILES: Final = (*SMALL_TILES.values(), LARGE_TILES)
MANY: Final = (64, 128, 256)
"""Tokens."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Inputs of a layer."""

    x: Tensor
    routing: Routing


Way = Callable[[Mxfp4Stacks, Chosen], Tensor]


def _choose_experts(tokens: int, seed: int) -> Chosen:
    generator = torch.Generator(GPU).manual_seed(seed)
    shares, chosen = torch.rand(tokens, COUNT, device=GPU, generator=generator).topk(PER_TOKEN, 1)
    x = torch.randn(tokens, HIDDEN, device=GPU, generator=generator).bfloat16()
    return Chosen(x, Routing(shares / shares.sum(1, keepdim=True), chosen))


@cache
def _codes_behind_are_zeros(columns: int) -> Tensor:
    """The bits of a line's 64 bytes that its first columns take."""
    codes = torch.zeros(1, 1, LINE_COLUMNS, dtype=torch.uint8)
    codes[:, :, :columns] = 15
    return pack_mxfp4(codes, torch.zeros(1, 1, 4, dtype=torch.uint8)).values.flatten().to(GPU)


def _stack(features: int, columns: int) -> Mxfp4Stack:
    lines = -(-columns // LINE_COLUMNS)
    values = torch.randint(0, 256, (COUNT, lines, features, LINE_COLUMNS // 2), dtype=torch.uint8, device=GPU)
    if columns % LINE_COLUMNS:
        values[:, -1] &= _codes_behind_are_zeros(columns % LINE_COLUMNS)
    scales = torch.randint(118, 121, (COUNT, lines, features, 4), dtype=torch.uint8, device=GPU)
    return Mxfp4Stack(values, scales, columns)


def _layer() -> Mxfp4Stacks:
    biases = [torch.randn(COUNT, features, device=GPU).bfloat16() for features in (2 * INNER, HIDDEN)]
    return Mxfp4Stacks(_stack(2 * INNER, HIDDEN), biases[0], _stack(HIDDEN, INNER), biases[1], LIMIT, ALPHA)


def _run_served(stacks: Mxfp4Stacks, chosen: Chosen) -> Tensor:
    return experts(chosen.x, stacks, chosen.routing)


def _alone(config: TokenConfig, stacks: Mxfp4Stacks, chosen: Chosen) -> Tensor:
    return token_experts_mxfp4(chosen.x, stacks, chosen.routing, config)


def _run_sorted(stacks: Mxfp4Stacks, chosen: Chosen) -> Tensor:
    return _in_tiles(mxfp4_config(chosen.routing.pairs, COUNT), stacks, chosen)


def _in_tiles(config: Mxfp4Config, stacks: Mxfp4Stacks, chosen: Chosen) -> Tensor:
    return mxfp4_experts(chosen.x, stacks, chosen.routing, config)


def mxfp4_experts_of_gpt_oss() -> Iterator[Row]:
    """µs a layer, and the distance from the formula. A way that differs between two runs, or is far off, says WRONG."""
    layers = [_layer() for _ in range(LAYERS)]
    alone: dict[str, Way] = {
        f"alone, {c.gate_warps} x {c.gate_registers}, {c.down_warps} x {c.down_registers}": partial(_alone, c)
        for c in ALONE
    }
    for tokens in FEW:
        yield from _time_ways(layers, tokens, {"served": _run_served, "sorted": _run_sorted, **alone})
    for tokens in MANY:
        tiles: dict[str, Way] = {f"row blocks of {tile.rows}": partial(_in_tiles, tile) for tile in TILES}
        yield from _time_ways(layers, tokens, {"served": _run_served, **tiles})


def _time_ways(layers: list[Mxfp4Stacks], tokens: int, ways: Mapping[str, Way]) -> Iterator[Row]:
    """Each way goes through the layers; one that cannot be compiled says so and is passed over."""
    calls = [(layer, _choose_experts(tokens, 100 * tokens + draw)) for draw in range(DRAWS) for layer in layers]
    expected = _formula(*calls[0])
    _compile_together([partial(way, *calls[0]) for way in ways.values()])
    for name, way in ways.items():
        what = f"experts of gpt-oss-20b MXFP4, {name}"
        try:
            got = way(*calls[0])
            torch.cuda.synchronize()
        except (TritonError, RuntimeError, ValueError) as error:
            print(f"{what}, {tokens} tokens: {type(error).__name__}: {str(error).strip()[-200:]}", flush=True)
            continue
        distance = float((got.double() - expected).norm() / expected.norm())
        is_steady = all(torch.equal(got, way(*calls[0])) for _ in range(REPEATS))
        us = graph_us(partial(_run, [partial(way, *call) for call in calls]), len(calls))
        verdict = f"{distance:.1e} from the formula" + ("" if distance < 5e-3 and is_steady else ", WRONG")
        yield row(what, f"{tokens} tokens", us, "µs", None, verdict)


def _run(calls: Sequence[Callable[[], Tensor]]) -> None:
    for call in calls:
        call()


def _compile_together(works: list[Callable[[], Tensor]]) -> None:
    """Compile all kernels; one that fails here fails again where it is run, and is reported there."""
    with suppress(TritonError, RuntimeError, ValueError), compiled_together():
        for work in works:
            with suppress(TritonError, RuntimeError, ValueError):
                work()


def _formula(stacks: Mxfp4Stacks, chosen: Chosen) -> Tensor:
    """Expert by expert, float64 [T, H]."""
    total = torch.zeros(chosen.x.shape, dtype=torch.float64, device=GPU)
    wide = stacks.dequantised(torch.float32)
    for expert in range(COUNT):
        tokens, place = (chosen.routing.experts == expert).nonzero(as_tuple=True)
        if len(tokens):
            gate_up = chosen.x[tokens].double() @ wide.gate_up[expert].double().t() + wide.gate_up_bias[expert].double()
            gate, up = gate_up.bfloat16().double().chunk(2, -1)
            gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
            inner = (gate * torch.sigmoid(ALPHA * gate) * (up + 1)).bfloat16().double()
            out = (inner @ wide.down[expert].double().t() + wide.down_bias[expert].double()).bfloat16().double()
            total.index_add_(0, tokens, out * chosen.routing.shares[tokens, place][:, None].double())
    return total
