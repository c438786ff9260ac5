"""Before each step: rows at the end of their last block get another one, rows at their end are marked."""

from __future__ import annotations

from baton_engine.memory.blocks import BlockState
from baton_engine.scheduling.engine_state import EngineState, drop_unseen
from baton_engine.scheduling.preemption import preempt, youngest
from baton_engine.scheduling.sequence import Sequence, SequenceStage
from baton_engine.scheduling.step_draft import StepDraft


def advance_rows(state: EngineState, draft: StepDraft) -> None:
    """Attend to the rows that are due, the oldest first. The others cost nothing."""
    due = state.batch.take_due()
    if state.stalled:
        due += state.stalled
    if len(due) > 1:
        due.sort(key=lambda row: row.order)
    for row in due:
        if (
            row.stage is SequenceStage.RUNNING or row.stage is SequenceStage.STALLED
        ):  # else preempted by an older one just now
            _attend(state, draft, row)


def _attend(state: EngineState, draft: StepDraft, row: Sequence) -> None:
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
        draft.ending.append(row)
    else:
        state.batch.call(row, min(capacity, row.last_row))


def _grow(state: EngineState, draft: StepDraft, row: Sequence, index: int) -> bool:
    """Blocks with `index` for the row, at the cost of the youngest if need be. False: the row is not in this step."""
    groups = state.pool.groups
    drop_unseen(state, row.owner, index * state.config.block_tokens)
    while state.pool.available < groups:
        if _coming_blocks(state) >= draft.claimed_blocks + groups:
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


def _coming_blocks(state: EngineState) -> int:
    """Blocks that the launched steps' results free (a few less when some are shared: then one step is lost)."""
    ending = (row for step in state.in_flight for row in step.ending if row.stage is SequenceStage.ENDING)
    return state.pool.count(BlockState.FENCED) + sum(state.pool.held(row.owner) for row in ending)


def _is_alone(state: EngineState, row: Sequence) -> bool:
    """Nobody older holds blocks that come back by themselves: giving way would help no one."""
    return all(other is row for other in (*state.batch.rows.values(), *state.stalled)) and not (
        state.landed or state.prefilling
    )


def _stall(state: EngineState, row: Sequence) -> None:
    if row.stage is SequenceStage.RUNNING:
        state.batch.leave(row, SequenceStage.STALLED)
        state.stalled.append(row)
