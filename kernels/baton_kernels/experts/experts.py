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
from baton_kernels.dense.quantised_weight import GROUP, dequantise
from baton_kernels.dense.swiglu import swiglu, swiglu_reference
from baton_kernels.experts.expert_inputs import (
    BiasedStacks,
    Mxfp4Stacks,
    PlainStacks,
    QuantisedStacks,
    Routing,
    Stacks,
)


def choose_experts(logits: Tensor, per_token: int, normalised: bool) -> Routing:
    """Choose the `per_token` greatest of logits [T, E], the greatest first; of equals the lowest number.

    Shares are a softmax over all experts in float32; `normalised` ones add up to 1.
    """
    if logits.is_cuda:
        from baton_kernels.experts.gpu.experts import choose_experts_triton

        return Routing(*choose_experts_triton(logits, per_token, normalised))
    return choose_experts_reference(logits, per_token, normalised)


def route(x: Tensor, weight: Tensor, bias: Tensor | None, per_token: int, normalised: bool, arrived: Tensor) -> Routing:
    """Route x [T, H]: `choose_experts` of the logits of weight [E, H] and bias [E]. `arrived`: int32 [1] of this
    router alone, 0 between two calls."""
    if x.is_cuda and x.shape[0] == 1:
        from baton_kernels.experts.gpu.experts import route_token_triton

        return Routing(*route_token_triton(x, weight, bias, per_token, normalised, arrived))
    return choose_experts(linear(x, weight, bias), per_token, normalised)


def choose_experts_reference(logits: Tensor, per_token: int, normalised: bool) -> Routing:
    """The formula of `choose_experts`."""
    shares, order = torch.softmax(logits.float(), -1).sort(dim=-1, descending=True, stable=True)
    shares, experts = shares[:, :per_token].contiguous(), order[:, :per_token].contiguous()
    return Routing(shares / shares.sum(-1, keepdim=True) if normalised else shares, experts)


def experts(x: Tensor, stacks: Stacks, routing: Routing) -> Tensor:
    """Multiply x [T, H] bfloat16 by the experts of each token → [T, H], on a GPU. The form of the weights decides which
    kernels run. The host never waits for the device.

    Few tokens of weights of 16 bits or MXFP4 read their experts each. More are sorted by expert, and each expert's
    weights stream by once. With weights of 8 bits, many rows for each expert are rounded to 8 bits too, where the
    checkpoint allows that (`rounded_experts_reference`).
    """
    if isinstance(stacks, QuantisedStacks):
        from baton_kernels.experts.gpu.streamed_stacks import quantised_experts_gluon

        return quantised_experts_gluon(x, stacks, routing)
    if isinstance(stacks, PlainStacks):
        return _plain_experts(x, stacks, routing)
    if isinstance(stacks, BiasedStacks):
        return _biased_experts(x, stacks, routing)
    return _mxfp4_experts(x, stacks, routing)


def experts_reference(x: Tensor, stacks: PlainStacks | BiasedStacks, routing: Routing) -> Tensor:
    """The formula of `experts`, token by token."""
    rows = []
    for token, shares, numbers in zip(x, routing.shares, routing.experts.tolist(), strict=True):
        total = torch.zeros(x.shape[1], dtype=torch.float32, device=x.device)
        for share, expert in zip(shares, numbers, strict=True):
            gate_up = stacks.gate_up[expert].float() @ token.float()
            if isinstance(stacks, BiasedStacks):
                gate_up = (gate_up + stacks.gate_up_bias[expert].float()).to(x.dtype)
                inner = clamped_gate_reference(gate_up[None], stacks.limit, stacks.alpha)[0]
                out = stacks.down[expert].float() @ inner.float() + stacks.down_bias[expert].float()
            else:
                inner = swiglu_reference(gate_up.to(x.dtype)[None])[0]
                out = stacks.down[expert].float() @ inner.float()
            total += share * out.to(x.dtype).float()
        rows.append(total.to(x.dtype))
    return torch.stack(rows) if rows else x.clone()


def rounded_experts_reference(x: Tensor, stacks: QuantisedStacks, routing: Routing) -> Tensor:
    """The formula of `experts` where rows are rounded to 8 bits before both products, by their greatest value: with a
    scale for each row, or for each 128 columns of it where weights have blocks. Both stacks have 8 bits and are stored
    alike."""
    gate_up, down = stacks.gate_up, stacks.down
    kind = torch.int8 if gate_up.values.dtype == torch.int8 else torch.float8_e4m3fn
    group = GROUP if gate_up.has_blocks else 0
    total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    rounded = rounded_rows(x.float(), kind, group)
    for expert in range(stacks.count):
        tokens, place = (routing.experts == expert).nonzero(as_tuple=True)
        wide_gate_up, wide_down = (dequantise(stack.part(expert), torch.float32) for stack in (gate_up, down))
        gate, up = (rounded[tokens] @ wide_gate_up.t()).chunk(2, -1)
        if group:  # within the first product
            inner = functional.silu(gate) * up
        else:
            inner = swiglu_reference(torch.cat((gate, up), -1).to(x.dtype)).float()
        out = (rounded_rows(inner, kind, group) @ wide_down.t()).to(x.dtype)
        total.index_add_(0, tokens, out.float() * routing.shares[tokens, place][:, None])
    return total.to(x.dtype)


def rounded_rows(x: Tensor, kind: torch.dtype, group: int = 0) -> Tensor:
    """Round float32 rows [T, K] to e4m3 or int8, with a scale for each row or each `group` columns, and bring them
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
    """List numbers of tokens up to `most_tokens` that together launch every kernel a GPU may need for any of them."""
    from baton_kernels.experts.gpu.expert_launches import least_of_each_kind

    return least_of_each_kind(count, per_token, most_tokens)


def streams_mxfp4(device: torch.device, hidden: int, inner: int) -> bool:
    """Decide if a GPU multiplies stacks in MXFP4 as they are stored."""
    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    return is_hopper and hidden % 16 == 0 and inner % 16 == 0


def _plain_experts(x: Tensor, stacks: PlainStacks, routing: Routing) -> Tensor:
    """A token alone, or few next to many experts, read their experts each. Up to LIBRARY_BEYOND pairs for each expert,
    weights stream by; more pairs are multiplied by the library's grouped product."""
    from baton_kernels.experts.gpu.experts import are_few, few_experts_triton

    tokens, per_token = routing.experts.shape
    if are_few(tokens, per_token, stacks.count):
        return few_experts_triton(x, stacks, routing)
    from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS
    from baton_kernels.experts.gpu.streamed_experts import LIBRARY_BEYOND, streamed_experts

    if _streams(stacks, routing, min(LIBRARY_BEYOND * stacks.count, MAX_PAIRS)):
        return streamed_experts(x, stacks, routing)
    order = _sorted_by_expert(routing.experts, stacks.count)
    rows = x.index_select(0, order.pairs // per_token)
    inner = swiglu(functional.grouped_mm(rows, stacks.gate_up.transpose(1, 2), offs=order.ends))
    return _added_up(functional.grouped_mm(inner, stacks.down.transpose(1, 2), offs=order.ends), order, routing)


def _biased_experts(x: Tensor, stacks: BiasedStacks, routing: Routing) -> Tensor:
    """Up to as many pairs as the device's sort takes, weights stream by; more pairs are multiplied by the library."""
    from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS
    from baton_kernels.experts.gpu.streamed_experts import streamed_experts

    if _streams(stacks, routing, MAX_PAIRS):
        return streamed_experts(x, stacks, routing)
    order = _sorted_by_expert(routing.experts, stacks.count)
    # Where kernels are only compiled, not launched (`compiling.py`), experts are whatever memory held.
    taken = routing.experts.flatten().index_select(0, order.pairs).clamp_(0, stacks.count - 1)
    rows = x.index_select(0, order.pairs // routing.experts.shape[1])
    gate_up = functional.grouped_mm(rows, stacks.gate_up.transpose(1, 2), offs=order.ends)
    gate_up.add_(stacks.gate_up_bias.index_select(0, taken))
    inner = clamped_gate(gate_up, stacks.limit, stacks.alpha)
    out = functional.grouped_mm(inner, stacks.down.transpose(1, 2), offs=order.ends)
    return _added_up(out.add_(stacks.down_bias.index_select(0, taken)), order, routing)


def _mxfp4_experts(x: Tensor, stacks: Mxfp4Stacks, routing: Routing) -> Tensor:
    """A token alone, or few next to their experts, read their experts each; more are sorted by expert, in equal
    pieces when they are more than are sorted at once."""
    from baton_kernels.experts.gpu.expert_sort import MAX_PAIRS
    from baton_kernels.experts.gpu.streamed_mxfp4 import mxfp4_experts
    from baton_kernels.experts.gpu.token_mxfp4 import reads_alone, token_experts_mxfp4

    tokens, per_token = routing.experts.shape
    if routing.pairs > MAX_PAIRS:
        out = torch.empty_like(x)
        count = -(-tokens // (MAX_PAIRS // per_token))
        pieces = (tensor.chunk(count) for tensor in (x, *routing, out))
        for rows, shares, numbers, piece in zip(*pieces, strict=True):
            mxfp4_experts(rows, stacks, Routing(shares, numbers), out=piece)
        return out
    if reads_alone(tokens, per_token, stacks.count):
        return token_experts_mxfp4(x, stacks, routing)
    return mxfp4_experts(x, stacks, routing)


def _streams(stacks: PlainStacks | BiasedStacks, routing: Routing, most: int) -> bool:
    """Decide if weights stream by, for up to `most` pairs. Hopper's copies take rows of whole 16 bytes."""
    is_hopper = torch.cuda.get_device_capability(stacks.gate_up.device)[0] == 9
    has_whole_rows = stacks.gate_up.shape[2] % 8 == 0 and stacks.down.shape[2] % 8 == 0
    return is_hopper and routing.pairs <= most and has_whole_rows


@dataclass(frozen=True, slots=True)
class _Order:
    """Pairs of a token and an expert, sorted by expert."""

    pairs: Tensor  # int64 [T · k]
    place: Tensor  # int32 [T · k]: where each pair stands
    ends: Tensor  # int32 [E]: each expert's end


def _sorted_by_expert(numbers: Tensor, count: int) -> _Order:
    """Sort pairs with experts' numbers [T, k] of `count`. Keys have two bytes: sorting takes a pass for each."""
    keys, pairs = torch.sort(numbers.flatten().to(torch.int16), stable=True)
    order = torch.arange(len(keys), dtype=torch.int32, device=keys.device)
    place = torch.empty_like(order).index_copy_(0, pairs, order)
    known = torch.arange(count, dtype=torch.int16, device=keys.device)
    return _Order(pairs, place, torch.searchsorted(keys, known, right=True, out_int32=True))


def _added_up(out: Tensor, order: _Order, routing: Routing) -> Tensor:
    """Weigh rows of sorted pairs and add them up for each token, in one order: [T · k, H] → [T, H]."""
    from baton_kernels.experts.gpu.streamed_experts import sum_of_experts

    return sum_of_experts(out, order.place, routing.shares)
