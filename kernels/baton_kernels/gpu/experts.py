"""Mixtures of experts in Triton: routing, and a token alone, whose pairs read their expert's weights each."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain

FEATURES = 4
"""Of gate, and as many of up, a program."""
OUTPUTS = 2
"""Of the block, a program."""
COLUMNS = 1024
"""Read at a time: what is under way hides the way to memory."""


@triton.jit
def _route_kernel(
    logits_ptr, shares_ptr, experts_ptr, E, K: tl.constexpr, PLACES: tl.constexpr, BLOCK: tl.constexpr,
    NORMALISED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + token * E + number, mask=number < E, other=float("-inf")).to(tl.float32)
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
    tl.store(shares_ptr + token * K + place, shares, mask=place < K)
    tl.store(experts_ptr + token * K + place, experts.to(tl.int64), mask=place < K)


@triton.jit
def _gate_up_kernel(
    x_ptr, weight_ptr, experts_ptr, inner_ptr, K, H, F,
    FEATURES: tl.constexpr, COLUMNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    pair = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    known = feature < F
    expert = tl.load(experts_ptr + pair)
    rows = weight_ptr + (expert * 2 * F + feature)[:, None] * H
    gate = tl.zeros([FEATURES], tl.float32)
    up = tl.zeros([FEATURES], tl.float32)
    for start in range(0, H, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
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
    inner_ptr, weight_ptr, shares_ptr, experts_ptr, out_ptr, H, F, K: tl.constexpr,
    OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    token = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    known = output < H
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    total = tl.zeros([OUTPUTS], tl.float32)
    for place in tl.static_range(K):
        pair = token * K + place
        expert = tl.load(experts_ptr + pair)
        rows = weight_ptr + (expert * H + output)[:, None] * F
        y = tl.zeros([OUTPUTS], tl.float32)
        for start in range(0, F, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            inner = tl.load(inner_ptr + pair * F + column, mask=column < F, other=0.0).to(tl.float32)[None, :]
            inside = known[:, None] & (column < F)[None, :]
            y += tl.sum(tl.load(rows + column[None, :], mask=inside, other=0.0).to(tl.float32) * inner, 1)
        total += tl.load(shares_ptr + pair) * y.to(dtype).to(tl.float32)
    tl.store(out_ptr + token * H + output, total.to(dtype), mask=known)


def choose_experts_triton(logits: Tensor, per_token: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.experts.choose_experts`; logits contiguous."""
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


def few_experts_triton(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
    """As `baton_kernels.experts.experts_reference`; all contiguous."""
    (tokens, hidden), per_token, inner = x.shape, experts.shape[1], down.shape[2]
    between = torch.empty(tokens * per_token, inner, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    if tokens:
        launch = chain(x)
        _gate_up_kernel[(tokens * per_token, triton.cdiv(inner, FEATURES))](
            x, gate_up, experts, between, per_token, hidden, inner, FEATURES, COLUMNS, bool(launch), **launch
        )
        _down_kernel[(tokens, triton.cdiv(hidden, OUTPUTS))](
            between, down, shares, experts, out, hidden, inner, per_token, OUTPUTS, COLUMNS, bool(launch), **launch
        )
    return out
