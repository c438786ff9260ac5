"""One layer's experts in CUDA graphs, weights in 16 and in 8 bits: unrounded rows against rows rounded to 8 bits.

Two shapes, balanced random routing, which is not counted. A layer's weights are larger than the L2 cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from bench.engine.gpu_model import GPU, graph_us
from bench.kernels.gpu import Row, row
from torch import Tensor

from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.dense.quantised_weight import GROUP
from baton_kernels.experts.expert_inputs import PlainStacks, QuantisedStacks, Routing
from baton_kernels.experts.experts import experts
from baton_kernels.experts.gpu.rounded_stacks import rounded_experts_gluon, rounds
from baton_kernels.experts.gpu.streamed_stacks import quantised_experts_gluon, stack_config

TOKENS: Final = (256, 512, 1024, 2048, 4096, 8192)
CALLS: Final = 3
"""In a graph."""
FORMS: Final = ("e4m3 channels", "e4m3 blocks", "int8 channels")


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    count: int
    per_token: int
    hidden: int
    inner: int

    def routing(self, tokens: int) -> Routing:
        scores = torch.rand(tokens, self.count, device=GPU, generator=torch.Generator(GPU).manual_seed(tokens))
        shares, experts = scores.topk(self.per_token, 1)
        return Routing(shares / shares.sum(1, keepdim=True), experts)


SHAPES: Final = (Shape("Qwen3-30B-A3B", 128, 8, 2048, 768), Shape("Mixtral-8x7B", 8, 2, 4096, 14336))


def _stack(form: str, count: int, features: int, columns: int) -> QuantisedStack:
    if form == "int8 channels":
        values = torch.randint(-127, 128, (count, features, columns), dtype=torch.int8, device=GPU)
    else:
        values = torch.empty(count, features, columns, dtype=torch.uint8, device=GPU)
        for part in values:
            part.copy_(torch.randn(features, columns, device=GPU).to(torch.float8_e4m3fn).view(torch.uint8))
    shape = (count, features // GROUP, columns // GROUP) if form == "e4m3 blocks" else (count, features)
    scales = torch.full(shape, columns**-0.5 / (73 if form == "int8 channels" else 1), device=GPU)
    return QuantisedStack(values, scales, columns, rounds_inputs=True)


def expert_layers() -> Iterator[Row]:
    """µs a layer: bfloat16, and each form with rows of 16 bits and of 8, and which of the two is served."""
    for shape in SHAPES:
        gate_up = torch.randn(shape.count, 2 * shape.inner, shape.hidden, dtype=torch.bfloat16, device=GPU)
        down = torch.randn(shape.count, shape.hidden, shape.inner, dtype=torch.bfloat16, device=GPU)
        gate_up.mul_(shape.hidden**-0.5)
        down.mul_(shape.inner**-0.5)
        yield from _time_layers(shape, "bf16", partial(_run_served, PlainStacks(gate_up, down)), None)
        del gate_up, down
        torch.cuda.empty_cache()
        for form in FORMS:
            stacks = QuantisedStacks(
                _stack(form, shape.count, 2 * shape.inner, shape.hidden),
                _stack(form, shape.count, shape.hidden, shape.inner),
            )
            yield from _time_layers(shape, f"{form}, rows of 16 bits", partial(_as_they_are, stacks), None)
            yield from _time_layers(
                shape, f"{form}, rows of 8 bits", partial(_run_rounded, stacks), partial(rounds, stacks)
            )
            del stacks
            torch.cuda.empty_cache()


def _run_served(stacks: PlainStacks, x: Tensor, routing: Routing) -> Tensor:
    return experts(x, stacks, routing)


def _as_they_are(stacks: QuantisedStacks, x: Tensor, routing: Routing) -> Tensor:
    config = stack_config(routing.pairs, stacks.count, stacks.gate_up.has_blocks, 8)
    return quantised_experts_gluon(x, stacks, routing, config)


def _run_rounded(stacks: QuantisedStacks, x: Tensor, routing: Routing) -> Tensor:
    return rounded_experts_gluon(x, stacks, routing)


def _time_layers(
    shape: Shape,
    what: str,
    layer: Callable[[Tensor, Routing], Tensor],
    is_served: Callable[[int], bool] | None,
) -> Iterator[Row]:
    inputs = [(torch.randn(n, shape.hidden, dtype=torch.bfloat16, device=GPU), shape.routing(n)) for n in TOKENS]
    with compiled_together():
        for x, routing in inputs:
            layer(x, routing)
    for tokens, (x, routing) in zip(TOKENS, inputs, strict=True):

        def work(x: Tensor = x, routing: Routing = routing) -> None:
            for _ in range(CALLS):
                layer(x, routing)

        us = graph_us(work, CALLS, rounds=5)
        pairs = tokens * shape.per_token
        beside = f"{6e-6 * pairs * shape.hidden * shape.inner / us:.0f} TFLOP/s"
        if is_served is not None:
            beside += ", served" if is_served(pairs) else ", not served"
        yield row(f"experts of {shape.name}, {what}", f"{tokens} tokens", us, "µs", None, beside)
