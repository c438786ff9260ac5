"""Turns of an exchange and signals between the ranks' GPUs, for kernels of `PROGRAMS` programs.

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
    the others after. Gives up after `most_looks`, and then at once in every later call."""
    program = tl.program_id(0)
    looks = tl.where(tl.load(state_ptr + _PROGRAMS, volatile=True) == 0, most_looks, 0)
    tl.debug_barrier()
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            signals = tl.load(addresses_ptr + peer).to(tl.pointer_type(tl.int32))
            tl.atomic_xchg(signals + program * _MAX_RANKS + RANK, number, sem="release", scope="sys")
    own = tl.load(addresses_ptr + RANK).to(tl.pointer_type(tl.int32)) + program * _MAX_RANKS
    for peer in tl.static_range(RANKS):
        if peer != RANK:
            ahead = tl.atomic_add(own + peer, 0, sem="acquire", scope="sys") - number
            while ((ahead < 0) | (ahead > MOST_AHEAD)) & (looks > 0):
                looks -= 1
                ahead = tl.atomic_add(own + peer, 0, sem="acquire", scope="sys") - number
            if (ahead < 0) | (ahead > MOST_AHEAD):
                tl.store(state_ptr + _PROGRAMS, 1)
    tl.debug_barrier()


@triton.jit
def end_turn(state_ptr, turn):
    """Count the turn of this program."""
    tl.debug_barrier()
    tl.store(state_ptr + tl.program_id(0), turn + 1)
