"""Preemption when no block is free: the youngest sequence gives up its blocks and slot and is computed again later.

Progress: the oldest sequence is never preempted, so it advances until it ends. No new work is admitted while a
preempted sequence waits. So the set of admitted sequences only shrinks while memory is short, and a pool that holds one
sequence of the longest context always drains.
"""

from __future__ import annotations

from bisect import insort

from baton_engine.scheduling.engine_state import EngineState, close_slot, leave_stage, release_blocks
from baton_engine.scheduling.events import Preempted
from baton_engine.scheduling.sequence import Sequence, SequenceStage, SharedPrefix, SharedPrefixStage


def youngest(state: EngineState) -> Sequence | SharedPrefix | None:
    """Find the youngest holder of blocks that can be computed again. Held and reserved prefixes cannot: a transfer uses
    them."""
    holders: list[Sequence | SharedPrefix] = [*state.batch.rows.values(), *state.stalled]
    holders += [prefix for prefix in (*state.prefilling, *state.landed) if not prefix.request.spec.hold]
    return max(holders, key=lambda holder: holder.order, default=None)


def preempt(state: EngineState, victim: Sequence | SharedPrefix) -> None:
    """Take the victim's blocks and slots; its generated tokens are kept and extend the prompt of its next start."""
    state.preemptions += 1
    state.events.append(Preempted(victim.request.key))
    if isinstance(victim, Sequence):
        if victim.stage is SequenceStage.RUNNING:
            state.batch.leave(victim, SequenceStage.PREFIX)
        else:
            state.stalled.remove(victim)
        requeue_sequence(state, victim)
        return
    leave_stage(state, victim)
    if victim.stage is SharedPrefixStage.LANDED:  # its members have drawn different tokens: each goes on alone
        members = victim.waiting_members
        release_blocks(state, victim.owner)
        victim.stage = SharedPrefixStage.GONE
        for member in members:
            member.kv_tokens = len(victim.tokens)
            requeue_sequence(state, member)
        return
    for member in victim.members:
        close_slot(state, member)
    release_blocks(state, victim.owner)
    victim.slot = None
    _queue(state, victim)


def requeue_sequence(state: EngineState, sequence: Sequence) -> None:
    """Queue a sequence that has left the batch, to be computed again from its first token on."""
    close_slot(state, sequence)
    release_blocks(state, sequence.owner, sequence.fence)
    sequence.stage = SequenceStage.PREFIX
    prefix = SharedPrefix(sequence.request, (sequence,), sequence.owner, SharedPrefixStage.PREEMPTED)
    prefix.digests = sequence.digests
    sequence.prefix = prefix
    _queue(state, prefix)


def _queue(state: EngineState, prefix: SharedPrefix) -> None:
    prefix.stage = SharedPrefixStage.PREEMPTED
    state.waiting_tokens += prefix.num_tokens
    insort(state.preempted, prefix, key=lambda prefix: prefix.order)
