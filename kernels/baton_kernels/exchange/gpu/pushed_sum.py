"""Sums of few elements over ranks in Triton, alone or with the norm after them: each rank writes what it brings into
the others' memory, and the words themselves are the signal. No worker uses them yet: `python -m bench gpu_ranks
exchange` measures them next to the sums that workers use.

A landing place holds EMPTY until its word has arrived. Its reader puts EMPTY back, for the turn after the next one; the
sender has seen a word of the turn between by then. So there is one way over the link, where an exchange with signals
has three. A word that is EMPTY is sent as another one: both are no numbers in every type.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.exchange.gpu.signals import end_turn
from baton_kernels.exchange.rank_region import LANDING_BYTES, LANDINGS_AT, MAX_RANKS, PROGRAMS, RankRegion

BLOCK = 512
"""Words that a program adds up."""
ELEMENTS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_LANDINGS_AT: tl.constexpr = tl.constexpr(LANDINGS_AT)
_LANDING_BYTES: tl.constexpr = tl.constexpr(LANDING_BYTES)
_MAX_RANKS: tl.constexpr = tl.constexpr(MAX_RANKS)
_PROGRAMS: tl.constexpr = tl.constexpr(PROGRAMS)
EMPTY: tl.constexpr = tl.constexpr(-1)
_NOT_EMPTY: tl.constexpr = tl.constexpr(0x7FFF7FFF)


@triton.jit
def _landing_of(addresses_ptr, rank, turn, SENDER: tl.constexpr):
    """Where a rank's words of a sender land in this turn."""
    place = (turn & 1).to(tl.int64) * (_MAX_RANKS * _LANDING_BYTES) + _LANDINGS_AT + SENDER * _LANDING_BYTES
    return tl.multiple_of((tl.load(addresses_ptr + rank) + place).to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def _sent(x_ptr, place, inside):
    words = tl.load(x_ptr + place, mask=inside, other=0)
    return tl.where(words == EMPTY, _NOT_EMPTY, words)


@triton.jit
def _push(words, place, inside, addresses_ptr, turn, RANK: tl.constexpr, RANKS: tl.constexpr):
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            tl.store(_landing_of(addresses_ptr, peer, turn, RANK) + place, words, mask=inside)


@triton.jit
def _is_some_empty(words):
    return tl.max((words == EMPTY).to(tl.int32), axis=0)


@triton.jit
def _landed(place, inside, addresses_ptr, state_ptr, turn, looks, RANK: tl.constexpr, SENDER: tl.constexpr):
    """The words of a sender, once all have landed, or whatever is there when they are given up."""
    landing = _landing_of(addresses_ptr, RANK, turn, SENDER) + place
    words = tl.load(landing, mask=inside, other=0, volatile=True)
    missing = _is_some_empty(words)
    while (missing > 0) & (looks > 0):
        looks -= 1
        words = tl.load(landing, mask=inside, other=0, volatile=True)
        missing = _is_some_empty(words)
    if missing > 0:
        tl.store(state_ptr + _PROGRAMS, 1)
    tl.store(landing, tl.zeros_like(words) + EMPTY, mask=inside)
    return words


@triton.jit
def _low(words, ELEMENT: tl.constexpr):
    """The first element of each word, or its only one."""
    if ELEMENT.primitive_bitwidth == 32:
        return words.to(ELEMENT, bitcast=True)
    else:
        return words.to(tl.int16).to(ELEMENT, bitcast=True)


@triton.jit
def _high(words, ELEMENT: tl.constexpr):
    """The second element of each word; zeros where it has one."""
    if ELEMENT.primitive_bitwidth == 32:
        return tl.zeros_like(words).to(ELEMENT)
    else:
        return (words >> 16).to(tl.int16).to(ELEMENT, bitcast=True)


@triton.jit
def _joined(low, high, ELEMENT: tl.constexpr):
    if ELEMENT.primitive_bitwidth == 32:
        return low.to(tl.int32, bitcast=True)
    else:
        halves = low.to(tl.int16, bitcast=True).to(tl.int32), high.to(tl.int16, bitcast=True).to(tl.int32)
        return (halves[0] & 0xFFFF) | (halves[1] << 16)


@triton.jit
def _sum(
    own, place, inside, addresses_ptr, state_ptr, turn, looks,
    RANK: tl.constexpr, RANKS: tl.constexpr, ELEMENT: tl.constexpr,
):  # fmt: skip
    """Σ_r of low and high elements in the order of the ranks, rounded once."""
    low, high = _low(own, ELEMENT).to(tl.float32), _high(own, ELEMENT).to(tl.float32)
    for rank in tl.static_range(RANKS):
        words = own
        if rank != RANK:
            words = _landed(place, inside, addresses_ptr, state_ptr, turn, looks, RANK, rank)
        if rank == 0:
            low, high = _low(words, ELEMENT).to(tl.float32), _high(words, ELEMENT).to(tl.float32)
        else:
            low += _low(words, ELEMENT).to(tl.float32)
            high += _high(words, ELEMENT).to(tl.float32)
    return low.to(ELEMENT), high.to(ELEMENT)


@triton.jit
def _looks(state_ptr, most_looks):
    """Looks before a rank is given up. The same for all threads of a program: an atomic is one thread's."""
    return tl.where(tl.atomic_add(state_ptr + _PROGRAMS, 0, sem="relaxed", scope="gpu") == 0, most_looks, 0)


@triton.jit(do_not_specialize=["programs"])
def _pushed_sum_kernel(
    x_ptr, out_ptr, addresses_ptr, state_ptr, size, programs, most_looks,
    RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr, ELEMENT: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    turn = tl.load(state_ptr + program)
    place = program * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    own = _sent(x_ptr, place, inside)
    _push(own, place, inside, addresses_ptr, turn, RANK, RANKS)
    looks = _looks(state_ptr, most_looks)
    low, high = _sum(own, place, inside, addresses_ptr, state_ptr, turn, looks, RANK, RANKS, ELEMENT)
    tl.store(out_ptr + place, _joined(low, high, ELEMENT), mask=inside)
    end_turn(state_ptr, turn, programs)


@triton.jit(do_not_specialize=["programs"])
def _pushed_sum_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, addresses_ptr, state_ptr, rows, programs, eps, most_looks,
    H: tl.constexpr, WORDS: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, BLOCK: tl.constexpr,
    ELEMENT: tl.constexpr,
):  # fmt: skip
    PER_WORD: tl.constexpr = H // WORDS
    first = tl.program_id(0)
    turn = tl.load(state_ptr + first)
    column = tl.arange(0, BLOCK)
    inside = column < WORDS
    for row in range(first, rows, programs):
        place = row * WORDS + column
        _push(_sent(x_ptr, place, inside), place, inside, addresses_ptr, turn, RANK, RANKS)
    low_weight = tl.load(weight_ptr + PER_WORD * column, mask=inside, other=0.0).to(tl.float32)
    high_weight = tl.load(weight_ptr + PER_WORD * column + PER_WORD - 1, mask=inside, other=0.0).to(tl.float32)
    looks = _looks(state_ptr, most_looks)
    for row in range(first, rows, programs):
        place = row * WORDS + column
        residual = tl.load(residual_ptr + place, mask=inside, other=0)
        own = _sent(x_ptr, place, inside)
        low, high = _sum(own, place, inside, addresses_ptr, state_ptr, turn, looks, RANK, RANKS, ELEMENT)
        low = (low.to(tl.float32) + _low(residual, ELEMENT).to(tl.float32)).to(ELEMENT)
        high = (high.to(tl.float32) + _high(residual, ELEMENT).to(tl.float32)).to(ELEMENT)
        tl.store(total_ptr + place, _joined(low, high, ELEMENT), mask=inside)
        low32, high32 = low.to(tl.float32), high.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(low32 * low32 + high32 * high32, axis=0) / H + eps)
        low = ((low32 * scale).to(ELEMENT).to(tl.float32) * low_weight).to(ELEMENT)
        high = ((high32 * scale).to(ELEMENT).to(tl.float32) * high_weight).to(ELEMENT)
        tl.store(out_ptr + place, _joined(low, high, ELEMENT), mask=inside)
    end_turn(state_ptr, turn, programs)


def pushed_sum(x: Tensor, out: Tensor, region: RankRegion, block: int = BLOCK, warps: int = 4) -> None:
    """Fill `out` [n] from x [n] of words, which fit into a landing place and PROGRAMS blocks."""
    words = x.view(torch.int32)
    programs = triton.cdiv(words.numel(), block)
    _pushed_sum_kernel[(programs,)](
        words, out.view(torch.int32), region.addresses, region.state, words.numel(), programs, region.most_looks,
        region.rank, region.ranks, block, ELEMENTS[x.dtype], num_warps=warps,
    )  # fmt: skip


def pushed_sum_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, region: RankRegion, warps: int | None = None
) -> tuple[Tensor, Tensor]:
    """As `baton_kernels.exchange.rank_exchange.rank_sum_norm`, of rows of words that fit into a landing place."""
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    rows, hidden = residual.shape
    words = hidden * x.element_size() // 4
    block, programs = triton.next_power_of_2(words), min(rows, PROGRAMS)
    x, residual = x.view(torch.int32), residual.view(torch.int32)
    _pushed_sum_norm_kernel[(programs,)](
        x, residual, weight, out.view(torch.int32), total.view(torch.int32), region.addresses, region.state,
        rows, programs, eps, region.most_looks,
        hidden, words, region.rank, region.ranks, block, ELEMENTS[out.dtype],
        num_warps=warps or min(16, max(4, block // 256)),
    )  # fmt: skip
    return out, total
