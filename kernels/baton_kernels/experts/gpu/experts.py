"""Mixtures of experts in Triton: routing, and a token alone, whose pairs read their expert's weights each.

A token alone has its logits and its choice in one kernel. Else the product's own launch takes longer than its bytes.
A router counts arrivals in memory of its own: it takes part in one step at a time.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.experts.expert_inputs import PlainStacks, Routing
from baton_kernels.launching.dependent_launch import after_previous, chain

EXPERTS_A_PAIR = 4
"""From this many experts for each pair of a token and an expert on, each pair reads its expert: that costs less than
sorting, as two tokens seldom share an expert."""
FEATURES = 4
"""Features of gate, and as many of up, a program."""
OUTPUTS = 2
"""Outputs of the block a program."""
COLUMNS = 1024
"""Read at a time: what is under way hides the way to memory."""
GATE_WARPS, DOWN_WARPS = 8, 4
"""Warps of a program: the fastest that were measured."""
DOWN_VALUES = 4096
"""Weights of all chosen experts that a program of down reads at a time, added up at once."""
ROUTERS = 32
"""Programs wanted for the logits of a token alone. Each is a warp, as the choice waits for sums again and again."""
ROUTER_VALUES = 4096
"""Most weights that one of these programs holds, unless a single line has more."""


@triton.jit
def _choose(
    logits, shares_ptr, experts_ptr, K: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
    NORMALISED: tl.constexpr,
):  # fmt: skip
    """Choose K shares and experts by a token's float32 logits [BLOCK], -inf after the last expert's."""
    number = tl.arange(0, BLOCK)
    weights = tl.exp(logits - tl.max(logits, 0))
    place = tl.arange(0, PLACES)
    shares = tl.zeros([PLACES], tl.float32)
    experts = tl.zeros([PLACES], tl.int32)
    for choice in tl.static_range(K):
        best = tl.argmax(logits, 0, tie_break_left=True)
        shares = tl.where(place == choice, tl.sum(tl.where(number == best, weights, 0.0), 0), shares)
        experts = tl.where(place == choice, best, experts)
        logits = tl.where(number == best, float("-inf"), logits)
    shares = shares / (tl.sum(shares, 0) if NORMALISED else tl.sum(weights, 0))
    tl.store(shares_ptr + place, shares, mask=place < K)
    tl.store(experts_ptr + place, experts.to(tl.int64), mask=place < K)


@triton.jit
def _route_kernel(
    logits_ptr, shares_ptr, experts_ptr, E, K: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
    NORMALISED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + token * E + number, mask=number < E, other=float("-inf")).to(tl.float32)
    _choose(logits, shares_ptr + token * K, experts_ptr + token * K, K, PLACES, BLOCK, NORMALISED)


@triton.jit
def _router_kernel(
    x_ptr, weight_ptr, bias_ptr, logits_ptr, arrived_ptr, shares_ptr, experts_ptr, E, H, K: tl.constexpr,
    PLACES: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORMALISED: tl.constexpr,
    BIAS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Route one token. The last program to arrive has all logits to choose from."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_row, is_column = row < E, column < H
    inside = is_row[:, None] & is_column[None, :]
    # Nothing writes weights, so they are read while the kernels before still run.
    weight = tl.load(weight_ptr + row.to(tl.int64)[:, None] * H + column[None, :], mask=inside, other=0.0)
    after_previous(CHAINED)
    x = tl.load(x_ptr + column, mask=is_column, other=0.0).to(tl.float32)
    logits = tl.sum(weight.to(tl.float32) * x[None, :], 1)
    if BIAS:
        logits += tl.load(bias_ptr + row, mask=is_row, other=0.0).to(tl.float32)
    tl.store(logits_ptr + row, logits.to(logits_ptr.dtype.element_ty), mask=is_row)
    tl.debug_barrier()  # all threads' logits lie there before the program says so
    before = tl.atomic_add(arrived_ptr, 1, sem="acq_rel")
    if before < tl.num_programs(0) - 1:
        return
    tl.store(arrived_ptr, 0)
    number = tl.arange(0, BLOCK)
    known = tl.load(logits_ptr + number, mask=number < E, other=float("-inf"), cache_modifier=".cg")
    _choose(known.to(tl.float32), shares_ptr, experts_ptr, K, PLACES, BLOCK, NORMALISED)


@triton.jit
def _gate_up_kernel(
    x_ptr, weight_ptr, experts_ptr, inner_ptr, K, H, F,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    pair = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    known = feature < F
    expert = tl.load(experts_ptr + pair)
    rows = weight_ptr + (expert * 2 * F + feature)[:, None] * H
    gate = tl.zeros([FEATURES], tl.float32)
    up = tl.zeros([FEATURES], tl.float32)
    for step in tl.static_range(STEPS):
        column = step * COLUMNS + tl.arange(0, COLUMNS)
        inside = known[:, None] & (column < H)[None, :]
        x = tl.load(x_ptr + (pair // K) * H + column, mask=column < H, other=0.0).to(tl.float32)[None, :]
        gate += tl.sum(tl.load(rows + column[None, :], mask=inside, other=0.0).to(tl.float32) * x, 1)
        up += tl.sum(tl.load(rows + F * H + column[None, :], mask=inside, other=0.0).to(tl.float32) * x, 1)
    dtype: tl.constexpr = inner_ptr.dtype.element_ty
    rounded = gate.to(dtype).to(tl.float32)
    silu = (rounded / (1.0 + tl.exp(-rounded))).to(dtype).to(tl.float32)
    tl.store(inner_ptr + pair * F + feature, (silu * up.to(dtype).to(tl.float32)).to(dtype), mask=known)


@triton.jit
def _down_kernel(
    inner_ptr, weight_ptr, shares_ptr, experts_ptr, out_ptr, H, F, K: tl.constexpr, PLACES: tl.constexpr,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, STEPS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """All chosen experts at once, so that one sum over columns is waited for, not one an expert."""
    after_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    place = tl.arange(0, PLACES)
    is_place = place < K
    pair = token * K + place
    expert = tl.load(experts_ptr + pair, mask=is_place, other=0)
    share = tl.load(shares_ptr + pair, mask=is_place, other=0.0)
    line = (expert[:, None] * H + output[None, :]) * F  # [PLACES, OUTPUTS]
    is_line = is_place[:, None] & (output < H)[None, :]
    y = tl.zeros([PLACES, OUTPUTS], tl.float32)
    for step in tl.static_range(STEPS):
        column = step * COLUMNS + tl.arange(0, COLUMNS)
        is_column = column < F
        inside = is_line[:, :, None] & is_column[None, None, :]
        weight = tl.load(weight_ptr + line[:, :, None] + column[None, None, :], mask=inside, other=0.0)
        there = is_place[:, None] & is_column[None, :]
        inner = tl.load(inner_ptr + (pair * F)[:, None] + column[None, :], mask=there, other=0.0)
        y += tl.sum(weight.to(tl.float32) * inner.to(tl.float32)[:, None, :], 2)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    total = tl.sum(share[:, None] * y.to(dtype).to(tl.float32), 0)
    tl.store(out_ptr + token * H + output, total.to(dtype), mask=output < H)


def are_few(tokens: int, per_token: int, count: int) -> bool:
    """Decide if tokens that take `per_token` of `count` experts each read their experts pair by pair, unsorted."""
    return tokens <= 1 or tokens * per_token * EXPERTS_A_PAIR <= count


def choose_experts_triton(logits: Tensor, per_token: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.experts.experts.choose_experts`; logits contiguous."""
    tokens, count = logits.shape
    shares = torch.empty(tokens, per_token, dtype=torch.float32, device=logits.device)
    experts = torch.empty(tokens, per_token, dtype=torch.int64, device=logits.device)
    if tokens:
        launch = chain(logits)
        places, block = triton.next_power_of_2(per_token), triton.next_power_of_2(count)
        _route_kernel[(tokens,)](
            logits, shares, experts, count, per_token, places, block, normalised, bool(launch), num_warps=1, **launch
        )
    return shares, experts


def route_token_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, per_token: int, normalised: bool, arrived: Tensor
) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.experts.experts.route` for x [1, H]; all contiguous."""
    count, hidden = weight.shape
    shares = torch.empty(1, per_token, dtype=torch.float32, device=x.device)
    experts = torch.empty(1, per_token, dtype=torch.int64, device=x.device)
    logits = torch.empty(count, dtype=x.dtype, device=x.device)
    block, columns = triton.next_power_of_2(count), triton.next_power_of_2(hidden)
    rows = max(1, min(block // ROUTERS, ROUTER_VALUES // columns))
    launch = chain(x)
    _router_kernel[(triton.cdiv(count, rows),)](
        x, weight, weight if bias is None else bias, logits, arrived, shares, experts, count, hidden, per_token,
        triton.next_power_of_2(per_token), block, rows, columns, normalised, bias is not None, bool(launch),
        num_warps=1, **launch,
    )  # fmt: skip
    return shares, experts


def few_experts_triton(x: Tensor, stacks: PlainStacks, routing: Routing) -> Tensor:
    """As `baton_kernels.experts.experts.experts_reference`; all contiguous."""
    shares, experts = routing
    (tokens, hidden), per_token, inner = x.shape, experts.shape[1], stacks.down.shape[2]
    between = torch.empty(tokens * per_token, inner, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    if tokens:
        launch = chain(x)
        _gate_up_kernel[(tokens * per_token, triton.cdiv(inner, FEATURES))](
            x, stacks.gate_up, experts, between, per_token, hidden, inner, FEATURES, COLUMNS,
            triton.cdiv(hidden, COLUMNS), bool(launch), num_warps=GATE_WARPS, **launch,
        )  # fmt: skip
        places = triton.next_power_of_2(per_token)
        columns = min(triton.next_power_of_2(inner), max(16, DOWN_VALUES // (places * OUTPUTS)))
        _down_kernel[(tokens, triton.cdiv(hidden, OUTPUTS))](
            between, stacks.down, shares, experts, out, hidden, inner, per_token, places, OUTPUTS, columns,
            triton.cdiv(inner, columns), bool(launch), num_warps=DOWN_WARPS, **launch,
        )  # fmt: skip
    return out
