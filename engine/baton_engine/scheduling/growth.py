"""Advance the rows before each step: a row with a full last block gets another one, a row at its end is marked."""

from __future__ import annotations

from baton_engine.memory.blocks import BlockState
from baton_engine.scheduling.engine_state import EngineState, drop_unseen
from baton_engine.scheduling.preemption import preempt, youngest
from baton_engine.scheduling.sequence import Sequence, SequenceStage
from baton_engine.scheduling.step_draft import StepDraft


def advance_rows(state: EngineState, draft: StepDraft) -> None:
    """Check the rows that the calendar lists and the stalled ones, oldest first. The other rows cost nothing."""
    rows = state.batch.take_due()
    if state.stalled:
        rows += state.stalled
    if len(rows) > 1:
        rows.sort(key=lambda row: row.order)
    for row in rows:
        if (
            row.stage is SequenceStage.RUNNING or row.stage is SequenceStage.STALLED
        ):  # else preempted by an older one just now
            _advance(state, draft, row)


def _advance(state: EngineState, draft: StepDraft, row: Sequence) -> None:
    is_running = row.stage is SequenceStage.RUNNING
    kv_tokens = state.batch.kv_tokens(row) if is_running else row.kv_tokens
    capacity = len(state.pool.table(row.owner)) // state.pool.groups * state.config.block_tokens
    if kv_tokens == capacity:
        if not _grow(state, draft, row, capacity // state.config.block_tokens):
            return
        capacity += state.config.block_tokens
    if row.stage is SequenceStage.STALLED:
        state.stalled.remove(row)
        state.batch.join(row)
    if kv_tokens == row.last_row:
        draft.finishing.append(row)
    else:
        state.batch.schedule(row, min(capacity, row.last_row))


def _grow(state: EngineState, draft: StepDraft, row: Sequence, index: int) -> bool:
    """Give the row its block `index` of each group, preempting the youngest if need be. False: the row is not in this
    step."""
    groups = state.pool.groups
    drop_unseen(state, row.owner, index * state.config.block_tokens)
    while state.pool.available < groups:
        if _count_returning_blocks(state) >= draft.claimed_blocks + groups:
            draft.claimed_blocks += groups
            _stall(state, row)
            return False
        victim = youngest(state)
        if victim is None or (victim is row and _is_alone(state, row)):
            _stall(state, row)  # held and reserved blocks have deadlines of their own
            return False
        preempt(state, victim)
        if victim is row:
            return False
    blocks = state.pool.allocate(row.owner, 1)
    assert row.slot is not None
    draft.set_blocks(row.slot, blocks, groups, index)
    return True


def _count_returning_blocks(state: EngineState) -> int:
    """Count the blocks that the launched steps' results will free. Shared ones are counted too: then one step is
    lost."""
    finishing = (row for step in state.in_flight for row in step.finishing if row.stage is SequenceStage.FINISHING)
    return state.pool.count(BlockState.FENCED) + sum(state.pool.held(row.owner) for row in finishing)


def _is_alone(state: EngineState, row: Sequence) -> bool:
    """True when no other sequence holds blocks that will come back by themselves: preempting the row would not help."""
    return all(other is row for other in (*state.batch.rows.values(), *state.stalled)) and not (
        state.landed or state.prefilling
    )


def _stall(state: EngineState, row: Sequence) -> None:
    if row.stage is SequenceStage.RUNNING:
        state.batch.leave(row, SequenceStage.STALLED)
        state.stalled.append(row)
