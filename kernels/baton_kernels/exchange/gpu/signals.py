"""Turns of an exchange and signals between the ranks' GPUs, for kernels of up to `PROGRAMS` programs.

Program p of a rank signals program p of every other rank, and waits for theirs. A signal is the number of the turn,
doubled, and whether it is the turn's first or second; numbers only grow, and wrap around. A release by the whole
system makes a program's writes visible to the program that acquires its signal, on another GPU too.

Small exchanges leave out the last programs, which then signal nothing: what another rank signalled last may be of any
turn before. No rank is more than one turn ahead of another, whose signal the first program of every turn awaits. So a
signal counts if it is of the awaited number or at most MOST_AHEAD more, and numbers may wrap around in between.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from baton_kernels.exchange.rank_region import MAX_RANKS, PROGRAMS, SIGNAL_BYTES, SLOT_BYTES

_PROGRAMS: tl.constexpr = tl.constexpr(PROGRAMS)
_MAX_RANKS: tl.constexpr = tl.constexpr(MAX_RANKS)
_SIGNAL_BYTES: tl.constexpr = tl.constexpr(SIGNAL_BYTES)
_SLOT_BYTES: tl.constexpr = tl.constexpr(SLOT_BYTES)
_HALF_BYTES: tl.constexpr = tl.constexpr(2 * SLOT_BYTES)
MOST_AHEAD: tl.constexpr = tl.constexpr(2)
"""From a turn's first signal to that of the next turn."""


@triton.jit
def slot_of(addresses_ptr, rank, turn, SECOND: tl.constexpr):
    """Address of a rank's slot in this turn: of what it brought, or (SECOND) of its sums."""
    half = (turn & 1).to(tl.int64) * _HALF_BYTES
    return tl.load(addresses_ptr + rank) + _SIGNAL_BYTES + half + (_SLOT_BYTES if SECOND else 0)


@triton.jit
def meet(addresses_ptr, state_ptr, number, most_looks, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Signal `number` to this program of every other rank, and wait for theirs. All threads' writes before are seen by
    the others after. Gives up after `most_looks`, and then at once in every later call.

    Each other rank has a thread that signals it and looks for its signal: releases one after the other would each wait
    for the way to the other GPU.
    """
    program = tl.program_id(0)
    peer = tl.arange(0, _MAX_RANKS)
    is_other = (peer < RANKS) & (peer != RANK)
    looks = tl.where(tl.load(state_ptr + _PROGRAMS, volatile=True) == 0, most_looks, 0)
    regions = tl.load(addresses_ptr + peer, mask=is_other, other=0).to(tl.pointer_type(tl.int32))
    own = tl.load(addresses_ptr + RANK).to(tl.pointer_type(tl.int32)) + program * _MAX_RANKS
    tl.debug_barrier()
    tl.atomic_xchg(regions + program * _MAX_RANKS + RANK, number, mask=is_other, sem="release", scope="sys")
    missing = _count_missing(own + peer, number, is_other)
    while (missing > 0) & (looks > 0):
        looks -= 1
        missing = _count_missing(own + peer, number, is_other)
    if missing > 0:
        tl.store(state_ptr + _PROGRAMS, 1)
    tl.debug_barrier()


@triton.jit
def _count_missing(signals, number, is_other):
    """How many of the other ranks have not signalled `number`."""
    ahead = tl.atomic_add(signals, 0, mask=is_other, sem="acquire", scope="sys") - number
    return tl.sum((is_other & ((ahead < 0) | (ahead > MOST_AHEAD))).to(tl.int32), axis=0)


@triton.jit
def end_turn(state_ptr, turn, launched):
    """Count the turn of this program. The first one counts those that were not launched, too."""
    program = tl.program_id(0)
    tl.debug_barrier()
    tl.store(state_ptr + program, turn + 1)
    if program == 0:
        others = tl.arange(0, _PROGRAMS)
        tl.store(state_ptr + others, tl.zeros([_PROGRAMS], tl.int32) + (turn + 1), mask=others >= launched)
