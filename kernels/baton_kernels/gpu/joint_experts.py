"""Both products of a token's experts in one Triton kernel, so that memory is read on between them.

Programs stay: as many as run at once. Each goes through its tiles of gate and up, asks for its first tile of down, and
only then waits for all others. Tiles' weights are asked for one tile ahead.

A program that waits takes its place until all others have come, so more programs than run at once would never end.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.gpu.dependent_launch import after_previous, chain


@triton.jit
def _gate_up_weights(
    weight_ptr, experts_ptr, tile, tiles, H, F, K: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr
):
    """Of a tile of features of one choice, gate and up, [FEATURES, COLUMNS] of [F, H] each; none behind the last."""
    is_there = tile < K * tiles
    expert = tl.load(experts_ptr + tile // tiles, mask=is_there, other=0)
    feature = tile % tiles * FEATURES + tl.arange(0, FEATURES)
    column = tl.arange(0, COLUMNS)
    inside = (is_there & (feature < F))[:, None] & (column < H)[None, :]
    rows = weight_ptr + (expert * 2 * F + feature)[:, None] * H + column[None, :]
    return tl.load(rows, mask=inside, other=0.0), tl.load(rows + F * H, mask=inside, other=0.0)


@triton.jit
def _down_weights(
    weight_ptr, expert, tile, H, F, K: tl.constexpr, PLACES: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Of a tile of outputs, those of all chosen experts, [PLACES, OUTPUTS, COLUMNS] of [K, H, F]."""
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    column = tl.arange(0, COLUMNS)
    is_line = (tl.arange(0, PLACES) < K)[:, None] & (output < H)[None, :]
    line = (expert[:, None] * H + output[None, :]) * F
    inside = is_line[:, :, None] & (column < F)[None, None, :]
    return tl.load(weight_ptr + line[:, :, None] + column[None, None, :], mask=inside, other=0.0)


@triton.jit
def _joint_kernel(
    x_ptr, gate_up_ptr, down_ptr, shares_ptr, experts_ptr, inner_ptr, out_ptr, arrived_ptr, H, F, K: tl.constexpr,
    PLACES: tl.constexpr, FEATURES: tl.constexpr, COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr,
    INNER_COLUMNS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_previous(CHAINED)
    program, programs = tl.program_id(0), tl.num_programs(0)
    dtype: tl.constexpr = inner_ptr.dtype.element_ty
    column = tl.arange(0, COLUMNS)
    tiles = tl.cdiv(F, FEATURES)
    gate_weight, up_weight = _gate_up_weights(gate_up_ptr, experts_ptr, program, tiles, H, F, K, FEATURES, COLUMNS)
    x = tl.load(x_ptr + column, mask=column < H, other=0.0).to(tl.float32)[None, :]
    for tile in range(program, K * tiles, programs):
        ahead = tile + programs
        next_gate, next_up = _gate_up_weights(gate_up_ptr, experts_ptr, ahead, tiles, H, F, K, FEATURES, COLUMNS)
        gate = tl.sum(gate_weight.to(tl.float32) * x, 1).to(dtype).to(tl.float32)
        up = tl.sum(up_weight.to(tl.float32) * x, 1).to(dtype).to(tl.float32)
        feature = tile % tiles * FEATURES + tl.arange(0, FEATURES)
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        tl.store(inner_ptr + tile // tiles * F + feature, (silu * up).to(dtype), mask=feature < F)
        gate_weight, up_weight = next_gate, next_up

    tl.debug_barrier()  # all threads' features lie there before the program says so
    tl.atomic_add(arrived_ptr, 1, sem="release")  # which waits for what was read, so down's weights come behind it
    place = tl.arange(0, PLACES)
    expert = tl.load(experts_ptr + place, mask=place < K, other=0)
    share = tl.load(shares_ptr + place, mask=place < K, other=0.0)
    weight = _down_weights(down_ptr, expert, program, H, F, K, PLACES, OUTPUTS, INNER_COLUMNS)
    while tl.atomic_add(arrived_ptr, 0, sem="acquire") < programs:
        pass
    tl.debug_barrier()
    column = tl.arange(0, INNER_COLUMNS)
    there = (place < K)[:, None] & (column < F)[None, :]
    inner = tl.load(inner_ptr + place[:, None] * F + column[None, :], mask=there, other=0.0).to(tl.float32)
    for tile in range(program, tl.cdiv(H, OUTPUTS), programs):
        next_weight = _down_weights(down_ptr, expert, tile + programs, H, F, K, PLACES, OUTPUTS, INNER_COLUMNS)
        y = tl.sum(weight.to(tl.float32) * inner[:, None, :], 2).to(dtype).to(tl.float32)
        output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
        tl.store(out_ptr + output, tl.sum(share[:, None] * y, 0).to(dtype), mask=output < H)
        weight = next_weight
    # The last to leave makes room for the next call; by then all have seen that all came.
    if tl.atomic_add(arrived_ptr + 1, 1, sem="acq_rel") == programs - 1:
        tl.store(arrived_ptr, 0)
        tl.store(arrived_ptr + 1, 0)


@dataclass(frozen=True, slots=True)
class JointConfig:
    """What a program computes at a time, its warps, and how many share a multiprocessor: they have to fit."""

    features: int
    outputs: int
    warps: int
    programs: int


def joint_experts_triton(
    x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, experts: Tensor, arrived: Tensor, config: JointConfig,
    programs: int,
) -> Tensor:  # fmt: skip
    """As `baton_kernels.experts.experts_reference` for x [1, H], all contiguous. arrived: int32 [2] of this layer
    alone, 0 between two calls. `programs` in all."""
    (_, hidden), per_token, features = x.shape, experts.shape[1], down.shape[2]
    inner = torch.empty(per_token, features, dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    launch = chain(x)
    _joint_kernel[(programs,)](
        x, gate_up, down, shares, experts, inner, out, arrived, hidden, features, per_token,
        triton.next_power_of_2(per_token), config.features, triton.next_power_of_2(hidden), config.outputs,
        triton.next_power_of_2(features), bool(launch), num_warps=config.warps,
        maxnreg=min(255, 65_536 // (32 * config.warps * config.programs) // 8 * 8), **launch,
    )  # fmt: skip
    return out
