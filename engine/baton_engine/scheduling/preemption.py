"""Who gives way when no block is free, and how: the youngest gives up blocks and slot and is computed again later.

Progress: the oldest sequence is never chosen, so it advances until it ends; new work is not admitted while anyone
waits to return; hence the set of admitted sequences only shrinks while memory is short, and a pool that holds one
sequence of the longest context always drains.
"""

from __future__ import annotations

from bisect import insort

from baton_engine.scheduling.engine_state import EngineState, close_slot, leave_stage, release_blocks
from baton_engine.scheduling.sequence import Sequence, SequenceStage, Stem, StemStage


def youngest(state: EngineState) -> Sequence | Stem | None:
    """The youngest holder of blocks that can be computed again. Held and reserved stems are others' business."""
    holders: list[Sequence | Stem] = [*state.batch.rows.values(), *state.stalled]
    holders += [stem for stem in (*state.prefilling, *state.landed) if not stem.request.spec.hold]
    return max(holders, key=lambda holder: holder.order, default=None)


def preempt(state: EngineState, victim: Sequence | Stem) -> None:
    """Take blocks and slots away; what was generated is kept and becomes the beginning of the next start."""
    state.preemptions += 1
    if isinstance(victim, Sequence):
        if victim.stage is SequenceStage.RUNNING:
            state.batch.leave(victim, SequenceStage.STEM)
        else:
            state.stalled.remove(victim)
        return_sequence(state, victim)
        return
    leave_stage(state, victim)
    if victim.stage is StemStage.LANDED:  # its members have drawn different tokens: each returns alone
        members = victim.waiting_members
        release_blocks(state, victim.owner)
        victim.stage = StemStage.GONE
        for member in members:
            member.kv_tokens = len(victim.tokens)
            return_sequence(state, member)
        return
    for member in victim.members:
        close_slot(state, member)
    release_blocks(state, victim.owner)
    victim.slot = None
    _queue(state, victim)


def return_sequence(state: EngineState, sequence: Sequence) -> None:
    """A sequence that has left the batch waits to be computed again from its first token on."""
    close_slot(state, sequence)
    release_blocks(state, sequence.owner, sequence.fence)
    sequence.stage = SequenceStage.STEM
    stem = Stem(sequence.request, (sequence,), sequence.owner, StemStage.RETURNING)
    stem.digests = sequence.digests
    sequence.stem = stem
    _queue(state, stem)


def _queue(state: EngineState, stem: Stem) -> None:
    stem.stage = StemStage.RETURNING
    state.waiting_tokens += stem.num_tokens
    insort(state.returning, stem, key=lambda stem: stem.order)
