"""From a stem that stands to rows of the batch: landed KV gets slots, choices fork with copy-on-write."""

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
from baton_engine.scheduling.preemption import return_sequence
from baton_engine.scheduling.sequence import Sequence, Stem, StemStage
from baton_engine.scheduling.step_draft import StepDraft
from baton_engine.scheduling.step_plan import BlockCopy


def branch_stems(state: EngineState, draft: StepDraft) -> None:
    """Everything that can join the batch in this step does: stems drawn in the last step first, then landed ones."""
    branching, state.branching = state.branching, []
    for stem in branching:
        _branch(state, draft, stem, has_table=True)
    for stem in tuple(state.landed):
        if not may_take_slots(state, stem) or not may_draw(state, stem):
            continue  # others come first to what its flow would leave, or do not wait with it
        if len(stem.waiting_members) > state.slots.available:
            break
        leave_stage(state, stem)
        for member in stem.waiting_members:
            member.slot = state.slots.take(stem.request.flow)
            draft.open(member, len(stem.tokens), member.outputs[-1])
        _branch(state, draft, stem, has_table=False)


def _branch(state: EngineState, draft: StepDraft, stem: Stem, *, has_table: bool) -> None:
    """Every waiting member becomes a row with blocks of its own; the stem is gone.

    `has_table`: the runner already knows the stem's blocks under the stem's slot.
    """
    runners = stem.waiting_members
    table_slot = stem.slot if has_table else None
    for member in stem.members:
        member.stem = None
        if member not in runners:
            close_slot(state, member)
    if len(stem.members) == 1 and runners:
        _take_over(state, draft, stem, runners[0], table_slot)
    else:
        _fork(state, draft, stem, runners, table_slot)
    stem.stage = StemStage.GONE


def _take_over(state: EngineState, draft: StepDraft, stem: Stem, member: Sequence, table_slot: int | None) -> None:
    """The only member already owns the stem's blocks."""
    if table_slot is None:
        assert member.slot is not None
        draft.set_blocks(member.slot, state.pool.table(member.owner), state.pool.groups)
    member.digests = stem.digests
    _join(state, stem, member)


def _fork(state: EngineState, draft: StepDraft, stem: Stem, runners: list[Sequence], table_slot: int | None) -> None:
    """Full blocks are shared; the last, partly filled one goes to the first runner, the others get copies of it."""
    table = tuple(state.pool.table(stem.owner))
    full = len(stem.tokens) // state.config.block_tokens * state.pool.groups
    for position, member in enumerate(runners):
        assert member.slot is not None
        member.digests = list(stem.digests)
        if position == 0:
            state.pool.share(member.owner, table)
        else:
            state.pool.share(member.owner, table[:full])
            if len(table) > full and not _copy(state, draft, table[full:], member.owner):
                member.kv_tokens = len(stem.tokens)
                return_sequence(state, member)
                continue
        if len(table) > full:
            member.fence = draft.step
        if member.slot != table_slot:
            draft.set_blocks(member.slot, state.pool.table(member.owner), state.pool.groups)
        _join(state, stem, member)
    release_blocks(state, stem.owner)


def _copy(state: EngineState, draft: StepDraft, sources: tuple[int, ...], owner: BlockOwner) -> bool:
    """Copies of `sources`, one of each group, for `owner`; False when too few blocks are available now: then they are
    computed again later."""
    if state.pool.available < len(sources):
        return False
    targets = state.pool.allocate(owner, 1)
    draft.copies += [BlockCopy(source, target) for source, target in zip(sources, targets, strict=True)]
    return True


def _join(state: EngineState, stem: Stem, member: Sequence) -> None:
    member.kv_tokens = len(stem.tokens)
    state.batch.join(member)
    state.batch.call(member, member.kv_tokens)
