"""Turn complete prefixes into rows of the batch: landed KV gets slots, choices fork with copy-on-write."""

from __future__ import annotations

from baton_engine.memory.blocks import BlockOwner
from baton_engine.scheduling.engine_state import (
    EngineState,
    close_slot,
    leave_stage,
    may_draw,
    may_take_slots,
    release_blocks,
)
from baton_engine.scheduling.preemption import requeue_sequence
from baton_engine.scheduling.sequence import Sequence, SharedPrefix, SharedPrefixStage
from baton_engine.scheduling.step_draft import StepDraft
from baton_engine.scheduling.step_plan import BlockCopy


def branch_prefixes(state: EngineState, draft: StepDraft) -> None:
    """Let every prefix that can join the batch do so: first those computed in the last step, then the landed ones."""
    branching, state.branching = state.branching, []
    for prefix in branching:
        _branch(state, draft, prefix, has_table=True)
    for prefix in tuple(state.landed):
        if not may_take_slots(state, prefix) or not may_draw(state, prefix):
            continue  # only this flow or this grammar has to wait: others may still join
        if len(prefix.waiting_members) > state.slots.available:
            break
        leave_stage(state, prefix)
        for member in prefix.waiting_members:
            member.slot = state.slots.take(prefix.request.flow)
            draft.open(member, len(prefix.tokens), member.outputs[-1])
        _branch(state, draft, prefix, has_table=False)


def _branch(state: EngineState, draft: StepDraft, prefix: SharedPrefix, *, has_table: bool) -> None:
    """Make each waiting member a row with blocks of its own; the prefix is gone.

    `has_table`: the runner already knows the prefix's blocks under the prefix's slot.
    """
    branches = prefix.waiting_members
    table_slot = prefix.slot if has_table else None
    for member in prefix.members:
        member.prefix = None
        if member not in branches:
            close_slot(state, member)
    if len(prefix.members) == 1 and branches:
        _take_over(state, draft, prefix, branches[0], table_slot)
    else:
        _fork(state, draft, prefix, branches, table_slot)
    prefix.stage = SharedPrefixStage.GONE


def _take_over(
    state: EngineState, draft: StepDraft, prefix: SharedPrefix, member: Sequence, table_slot: int | None
) -> None:
    """Make the only member a row. It already owns the prefix's blocks."""
    if table_slot is None:
        assert member.slot is not None
        draft.set_blocks(member.slot, state.pool.table(member.owner), state.pool.groups)
    member.digests = prefix.digests
    _join(state, prefix, member)


def _fork(
    state: EngineState, draft: StepDraft, prefix: SharedPrefix, branches: list[Sequence], table_slot: int | None
) -> None:
    """Share the full blocks; the last, partly filled one goes to the first branch, and the others get copies of it."""
    table = tuple(state.pool.table(prefix.owner))
    full = len(prefix.tokens) // state.config.block_tokens * state.pool.groups
    for position, member in enumerate(branches):
        assert member.slot is not None
        member.digests = list(prefix.digests)
        if position == 0:
            state.pool.share(member.owner, table)
        else:
            state.pool.share(member.owner, table[:full])
            if len(table) > full and not _copy(state, draft, table[full:], member.owner):
                member.kv_tokens = len(prefix.tokens)
                requeue_sequence(state, member)
                continue
        if len(table) > full:
            member.fence = draft.step
        if member.slot != table_slot:
            draft.set_blocks(member.slot, state.pool.table(member.owner), state.pool.groups)
        _join(state, prefix, member)
    release_blocks(state, prefix.owner)


def _copy(state: EngineState, draft: StepDraft, sources: tuple[int, ...], owner: BlockOwner) -> bool:
    """Copy `sources`, one block of each group, for `owner`. False when too few blocks are available: the member is then
    computed again later."""
    if state.pool.available < len(sources):
        return False
    targets = state.pool.allocate(owner, 1)
    draft.copies += [BlockCopy(source, target) for source, target in zip(sources, targets, strict=True)]
    return True


def _join(state: EngineState, prefix: SharedPrefix, member: Sequence) -> None:
    member.kv_tokens = len(prefix.tokens)
    state.batch.join(member)
    state.batch.schedule(member, member.kv_tokens)
