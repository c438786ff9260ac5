"""A mixture of experts: a router's choice of experts for each token, and their gated blocks, weighted and added.

Bytes: of the experts that any of the T tokens takes, 3·H·F each. FLOPs: 6·T·k·H·F.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baton_kernels.dense.gated_activations import clamped_gate, clamped_gate_reference
from baton_kernels.dense.linear import linear
from baton_kernels.dense.mxfp4_weight import Mxfp4Stack, dequantise_mxfp4
from baton_kernels.dense.quantised_stack import QuantisedStack
from baton_kernels.dense.quantised_weight import GROUP, dequantise
from baton_kernels.dense.swiglu import swiglu, swiglu_reference

EXPERTS_A_PAIR = 4
"""From so many experts for each pair of a token and an expert on, reading experts for each token costs less than
sorting: two tokens seldom share one."""


@dataclass(frozen=True, slots=True)
class BiasedStacks:
    """All experts of a layer, gate first."""

    gate_up: Tensor  # [E, 2F, H]
    gate_up_bias: Tensor  # [E, 2F]
    down: Tensor  # [E, H, F]
    down_bias: Tensor  # [E, H]


@dataclass(frozen=True, slots=True)
class Mxfp4Stacks:
    """The same with weights in MXFP4, on a Hopper GPU."""

    gate_up: Mxfp4Stack
    gate_up_bias: Tensor
    down: Mxfp4Stack
    down_bias: Tensor

    def dequantised(self, dtype: torch.dtype) -> BiasedStacks:
        gate_up, down = dequantise_mxfp4(self.gate_up, dtype), dequantise_mxfp4(self.down, dtype)
        return BiasedStacks(gate_up, self.gate_up_bias, down, self.down_bias)


def choose_experts(logits: Tensor, per_token: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """logits [T, E] → shares float32 [T, k] and experts int64 [T, k], the greatest first; of equals the lowest number.

    Shares are a softmax over all experts in float32; `normalised` ones add up to 1.
    """
    if logits.is_cuda:
        from baton_kernels.experts.gpu.experts import choose_experts_triton

        return choose_experts_triton(logits, per_token, normalised)
    return choose_experts_reference(logits, per_token, normalised)


def route(
    x: Tensor, weight: Tensor, bias: Tensor | None, per_token: int, normalised: bool, arrived: Tensor
) -> tuple[Tensor, Tensor]:
    """x [T, H], weight [E, H], bias [E] → `choose_experts` of the logits. arrived: int32 [1] of this router alone, 0
    between two calls."""
    if x.is_cuda and x.shape[0] == 1:
        from baton_kernels.experts.gpu.experts import route_token_triton

        return route_token_triton(x, weight, bias, per_token, normalised, arrived)
    return choose_experts(linear(x, weight, bias), per_token, normalised)


def choose_experts_reference(logits: Tensor, per_token: int, normalised: bool) -> tuple[Tensor, Tensor]:
    """The formula of `choose_experts`."""
    shares, order = torch.softmax(logits.float(), -1).sort(dim=-1, descending=True, stable=True)
    shares, experts = shares[:, :per_token].contiguous(), order[:, :per_token].contiguous()
    return (shares / shares.sum(-1, keepdim=True) if normalised else shares), experts


def experts_reference(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
    """The formula, token by token. x [T, H], gate_up [E, 2F, H], down [E, H, F] → [T, H]."""
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
        for share, expert in zip(shares[token], experts[token].tolist(), strict=True):
            inner = swiglu_reference((gate_up[expert].float() @ x[token].float()).to(x.dtype)[None])
            total += share * (down[expert].float() @ inner[0].float()).to(x.dtype).float()
        rows.append(total.to(x.dtype))
    return torch.stack(rows) if rows else x.clone()


def grouped_experts(x: Tensor, gate_up: Tensor, down: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
    """As `experts_reference`, on a GPU in bfloat16. Rows of x and F have whole 16 bytes.

    A token alone, or few beside many experts, read their experts each. More are sorted by expert. Up to LIBRARY_BEYOND
    pairs for each expert, its weights stream by; more are multiplied by the library's grouped product. The host never
    waits for the device."""
    if are_few(x.shape[0], experts.shape[1], gate_up.shape[0]):
        from baton_kernels.experts.gpu.experts import few_experts_triton

        return few_experts_triton(x, gate_up, down, shares, experts)
    from baton_kernels.experts.gpu.streamed_experts import LIBRARY_BEYOND, streamed_experts

    if _streams(experts, gate_up, down, LIBRARY_BEYOND * gate_up.shape[0]):
        return streamed_experts(x, gate_up, down, None, shares, experts, None)
    order = _sorted_by_expert(experts, gate_up.shape[0])
    rows = x.index_select(0, order.pairs // experts.shape[1])
    inner = swiglu(functional.grouped_mm(rows, gate_up.transpose(1, 2), offs=order.ends))
    return _added_up(functional.grouped_mm(inner, down.transpose(1, 2), offs=order.ends), order, shares)


def are_few(tokens: int, per_token: int, count: int) -> bool:
    """Whether so many tokens read their experts each, without sorting."""
    return tokens <= 1 or tokens * per_token * EXPERTS_A_PAIR <= count


def quantised_experts(
    x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor
) -> Tensor:
    """As `experts_reference` with weights of 8 or 4 bits, on a Hopper GPU in bfloat16. Rows of x and F have whole 16
    bytes. Many pairs for each expert are rounded to 8 bits (`rounded_experts_reference`) where the weights say that
    they may be. The host never waits for the device."""
    from baton_kernels.experts.gpu.streamed_stacks import quantised_experts_gluon

    return quantised_experts_gluon(x, gate_up, down, shares, experts)


def rounded_experts_reference(
    x: Tensor, gate_up: QuantisedStack, down: QuantisedStack, shares: Tensor, experts: Tensor
) -> Tensor:
    """The formula where rows are rounded to 8 bits before both products: a scale a row, or where weights have blocks
    one for each 128 columns, by their greatest value. Two stacks of 8 bits that are stored alike."""
    kind = torch.int8 if gate_up.values.dtype == torch.int8 else torch.float8_e4m3fn
    group = GROUP if gate_up.has_blocks else 0
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    rounded = rounded_rows(x.float(), kind, group)
    for expert in range(gate_up.values.shape[0]):
        tokens, place = (experts == expert).nonzero(as_tuple=True)
        wide_gate_up, wide_down = (dequantise(stack.part(expert), torch.float32) for stack in (gate_up, down))
        gate, up = (rounded[tokens] @ wide_gate_up.t()).chunk(2, -1)
        if group:  # within the first product
            inner = functional.silu(gate) * up
        else:
            inner = swiglu_reference(torch.cat((gate, up), -1).to(x.dtype)).float()
        out = (rounded_rows(inner, kind, group) @ wide_down.t()).to(x.dtype)
        total.index_add_(0, tokens, out.float() * shares[tokens, place][:, None])
    return total.to(x.dtype)


def rounded_rows(x: Tensor, kind: torch.dtype, group: int = 0) -> Tensor:
    """float32 rows [T, K] rounded to e4m3 or int8 with a scale a row, or one for each `group` columns, and brought
    back."""
    rows, columns = x.shape
    width = group or columns
    parts = functional.pad(x, (0, -columns % width)).view(rows, -(-columns // width), width)
    top = 127.0 if kind == torch.int8 else 448.0
    scales = parts.abs().amax(2, keepdim=True).clamp(min=1e-12) / top
    scaled = parts / scales
    codes = scaled.round() if kind == torch.int8 else scaled.to(kind).float()
    return (codes * scales).flatten(1)[:, :columns]


def launched_tokens(count: int, per_token: int, most_tokens: int) -> tuple[int, ...]:
    """On a GPU: numbers of tokens of which `most_tokens` and fewer launch no other kernels than these do."""
    from baton_kernels.experts.gpu.expert_launches import least_of_each_kind

    return least_of_each_kind(count, per_token, most_tokens)


def biased_experts_reference(
    x: Tensor, stacks: BiasedStacks, shares: Tensor, experts: Tensor, limit: float, alpha: float
) -> Tensor:
    """The formula of `biased_experts`, token by token."""
    rows = []
    for token in range(x.shape[0]):
        total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
        for share, expert in zip(shares[token], experts[token].tolist(), strict=True):
            gate_up = stacks.gate_up[expert].float() @ x[token].float() + stacks.gate_up_bias[expert].float()
            inner = clamped_gate_reference(gate_up.to(x.dtype)[None], limit, alpha)[0]
            out = stacks.down[expert].float() @ inner.float() + stacks.down_bias[expert].float()
            total += share * out.to(x.dtype).float()
        rows.append(total.to(x.dtype))
    return torch.stack(rows) if rows else x.clone()


def biased_experts(
    x: Tensor, stacks: BiasedStacks | Mxfp4Stacks, shares: Tensor, experts: Tensor, limit: float, alpha: float
) -> Tensor:
    """Experts with biases and a clamped gate, x [T, H] → [T, H], on a GPU in bfloat16. The host never waits.

    In MXFP4 a token alone, or few beside their experts, read their experts each; more are sorted by expert. More pairs
    than the device's sort takes bring weights in MXFP4 back to x's dtype."""
    from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS
    from baton_kernels.experts.gpu.streamed_experts import streamed_experts
    from baton_kernels.experts.gpu.streamed_mxfp4 import mxfp4_experts
    from baton_kernels.experts.gpu.token_mxfp4 import reads_alone, token_experts_mxfp4

    if isinstance(stacks, Mxfp4Stacks):
        if experts.numel() <= MAX_PAIRS:
            biases = (stacks.gate_up_bias, stacks.down_bias)
            is_alone = reads_alone(x.shape[0], experts.shape[1], stacks.gate_up.values.shape[0])
            multiply = token_experts_mxfp4 if is_alone else mxfp4_experts
            return multiply(x, stacks.gate_up, stacks.down, biases, shares, experts, limit, alpha)
        stacks = stacks.dequantised(x.dtype)
    if _streams(experts, stacks.gate_up, stacks.down, MAX_PAIRS):
        biases = (stacks.gate_up_bias, stacks.down_bias)
        return streamed_experts(x, stacks.gate_up, stacks.down, biases, shares, experts, (limit, alpha))
    order = _sorted_by_expert(experts, stacks.gate_up.shape[0])
    # Where kernels are only compiled, not launched (`compiling.py`), experts are whatever memory held.
    taken = experts.flatten().index_select(0, order.pairs).clamp_(0, stacks.gate_up.shape[0] - 1)
    rows = x.index_select(0, order.pairs // experts.shape[1])
    gate_up = functional.grouped_mm(rows, stacks.gate_up.transpose(1, 2), offs=order.ends)
    inner = clamped_gate(gate_up.add_(stacks.gate_up_bias.index_select(0, taken)), limit, alpha)
    out = functional.grouped_mm(inner, stacks.down.transpose(1, 2), offs=order.ends)
    return _added_up(out.add_(stacks.down_bias.index_select(0, taken)), order, shares)


def streams_mxfp4(device: torch.device, hidden: int, inner: int) -> bool:
    """Whether a GPU multiplies stacks in MXFP4 as they are stored."""
    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    return is_hopper and hidden % 16 == 0 and inner % 16 == 0


def _streams(experts: Tensor, gate_up: Tensor, down: Tensor, most: int) -> bool:
    """Whether weights stream by, for up to `most` pairs: Hopper's copies want rows of whole 16 bytes."""
    is_hopper = torch.cuda.get_device_capability(gate_up.device)[0] == 9
    return is_hopper and experts.numel() <= most and gate_up.shape[2] % 8 == 0 and down.shape[2] % 8 == 0


@dataclass(frozen=True, slots=True)
class _Order:
    """Pairs of a token and an expert, sorted by expert."""

    pairs: Tensor  # int64 [T · k]
    place: Tensor  # int32 [T · k]: where each pair stands
    ends: Tensor  # int32 [E]: each expert's end


def _sorted_by_expert(experts: Tensor, count: int) -> _Order:
    """experts [T, k] of `count`. Two bytes a key: sorting takes a pass for each."""
    keys, pairs = torch.sort(experts.flatten().to(torch.int16), stable=True)
    numbers = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
    place = torch.empty_like(numbers).index_copy_(0, pairs, numbers)
    known = torch.arange(count, dtype=torch.int16, device=keys.device)
    return _Order(pairs, place, torch.searchsorted(keys, known, right=True, out_int32=True))


def _added_up(out: Tensor, order: _Order, shares: Tensor) -> Tensor:
    """Rows of sorted pairs, weighted and added for each token, in one order: [T · k, H] → [T, H]."""
    from baton_kernels.experts.gpu.streamed_experts import sum_of_experts

    return sum_of_experts(out, order.place, shares)
