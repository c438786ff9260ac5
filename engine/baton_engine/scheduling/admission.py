"""What is computed in a step besides the running rows: whole prompts, several a step, within a budget of tokens.

Order: prompts already started, preempted sequences, then new prompts by their turns. Where nothing decodes, none begins
in a step that is long enough without it: whose turn is first shall have its token first. A prompt starts when all its
blocks and slots are there, so that a started one never waits for memory; groups with a window give theirs back as it
advances. Prompts are cut only when they exceed the budget. Where a grammar is still being compiled when a prompt is
computed, its logits are kept, and a chunk without tokens draws from them.
"""

from __future__ import annotations

import itertools

from baton_engine.scheduling.engine_state import (
    EngineState,
    announce,
    close_slot,
    leave_stage,
    may_draw,
    may_take_slots,
)
from baton_engine.scheduling.events import Computing
from baton_engine.scheduling.sequence import Sequence, SequenceStage, Stem, StemStage
from baton_engine.scheduling.step_draft import LaunchedChunk, StepDraft
from baton_engine.scheduling.step_plan import PrefillChunk


def fill_step(state: EngineState, draft: StepDraft) -> None:
    """Add prefill chunks to the step, admitting as many prompts as budget, blocks and slots allow."""
    rows = len(state.batch.rows)
    draft.budget = state.pieces.tokens(rows)
    for stem in tuple(state.prefilling):
        _add_chunk(state, draft, stem)
    for stem in tuple(state.returning):
        if not stem.tokens and not stem.members[0].is_settled:
            break  # its last token is still on its way
        if not _start(state, draft, stem):
            break
    if not any(may_take_slots(state, stem) and may_draw(state, stem) for stem in state.landed):
        _admit_new(state, draft)


def _admit_new(state: EngineState, draft: StepDraft) -> None:
    first = [*state.returning[:1], *itertools.islice(state.queued.values(), 1)]
    enough = state.pieces.enough_tokens(len(state.batch.rows))
    for stem in tuple(state.waiting.values()):
        if draft.prefill_tokens >= enough:
            break
        if any(other.order < stem.order for other in first):
            break  # it waits for blocks, and its turn is before this one's
        if _exceeds_share(state, stem) or not may_take_slots(state, stem):
            continue
        if not _start(state, draft, stem):
            break


def _exceeds_share(state: EngineState, stem: Stem) -> bool:
    """Whether a held prompt has to wait because too much KV already waits for grants.

    One may be held whatever the share, if a longest context still fits beside it.
    """
    if not stem.request.spec.hold or stem.request.is_granted:
        return False
    config = state.config
    blocks = config.blocks_for(len(_tokens(stem))) * state.pool.groups
    most = config.max_held_blocks if state.ungranted_blocks else config.blocks_beside_a_context
    return state.ungranted_blocks + blocks > most


def _start(state: EngineState, draft: StepDraft, stem: Stem) -> bool:
    """Give the stem its blocks and slots and add its first chunk; False when something is missing."""
    pool, config, floor = state.pool, state.config, state.floor
    if draft.prefill_tokens >= draft.budget or stem.failed_at == (pool.gains, floor):
        return False
    members = stem.waiting_members
    if len(members) > state.slots.available:
        return False
    _tokens(stem)
    stem.fill_digests(config.block_tokens)
    # At least one token is computed: its logits are what is drawn from.
    uses_cache = config.prefix_cache and not stem.is_scored
    hits = pool.match(stem.digests, (len(stem.tokens) - 1) // config.block_tokens) if uses_cache else []
    cached = len(hits) // pool.groups * config.block_tokens
    if not _chunk_size(state, draft, len(stem.tokens) - cached):
        return False
    missing = config.blocks_for(len(stem.tokens)) - len(hits) // pool.groups
    if pool.available - pool.evictable(hits) - missing * pool.groups < floor:
        stem.failed_at = (pool.gains, floor)
        if stem.stage is StemStage.WAITING:
            state.starved = stem
        return False
    _open(state, draft, stem, members, hits, missing)
    _add_chunk(state, draft, stem)
    return True


def _tokens(stem: Stem) -> tuple[int, ...]:
    """What the stem computes, put together once."""
    if not stem.tokens:
        stem.tokens = stem.members[0].context()
    return stem.tokens


def _open(
    state: EngineState, draft: StepDraft, stem: Stem, members: list[Sequence], hits: list[int], missing: int
) -> None:
    cached = len(hits) // state.pool.groups * state.config.block_tokens
    if stem.stage is StemStage.WAITING:
        state.turns.began(stem.request.start_tag, stem.request.cost)
        stem.request.cached_tokens = cached
    leave_stage(state, stem)
    stem.stage = StemStage.PREFILLING
    state.pool.share(stem.owner, hits)
    state.pool.allocate(stem.owner, missing)
    stem.cached_tokens = stem.planned_tokens = stem.done_tokens = cached
    state.prompt_tokens += len(stem.tokens)
    state.cached_prompt_tokens += cached
    for member in members:
        member.slot = state.slots.take(stem.request.flow)
        draft.open(member, cached, None)
    stem.slot = members[0].slot
    assert stem.slot is not None
    draft.set_blocks(stem.slot, state.pool.table(stem.owner), state.pool.groups)
    state.prefilling.append(stem)
    state.prefilling.sort(key=lambda stem: stem.order)
    request = stem.request
    if request.spec.hold:
        if not request.is_granted:
            request.held_blocks = state.pool.held(stem.owner)
            state.ungranted_blocks += request.held_blocks
        if cached:
            announce(state, stem)


def _chunk_size(state: EngineState, draft: StepDraft, rest: int) -> int:
    """How many of a prompt's `rest` tokens go into this step: all, a piece, or none."""
    config = state.config
    left = draft.budget - draft.prefill_tokens
    if rest <= left:
        return rest
    if rest <= draft.budget and not draft.is_shared:
        return 0  # whole in the next step
    others = len(state.prefilling) + len(state.returning) + len(state.waiting)
    if others <= 1:
        return left
    chunk = min(config.chunk, draft.budget)
    return chunk if chunk <= left else 0


def _add_chunk(state: EngineState, draft: StepDraft, stem: Stem) -> None:
    rest = len(stem.tokens) - stem.planned_tokens
    can_draw = may_draw(state, stem)
    size = _chunk_size(state, draft, rest)
    if size == 0 and (rest or not can_draw):
        return
    start = stem.planned_tokens
    stem.planned_tokens = end = start + size
    draft.prefill_tokens += size
    is_last = size == rest and can_draw
    draft.is_shared = draft.is_shared or size < rest
    sample = tuple(member.slot for member in stem.waiting_members if member.slot is not None) if is_last else ()
    draft.prefill.append(_chunk(stem, start, end, sample, keeps=size == rest and not can_draw))
    draft.chunks.append(LaunchedChunk(stem, start, end, is_last))
    if stem.request.spec.hold and size:
        stem.request.is_announced = True  # from now on others may be reading its blocks
        table = tuple(state.pool.table(stem.owner))
        state.events.append(Computing(stem.request.key, draft.step, end, table))
    if is_last:
        _finish_stem(state, draft, stem)


def _chunk(stem: Stem, start: int, end: int, sample: tuple[int, ...], *, keeps: bool) -> PrefillChunk:
    assert stem.slot is not None
    tokens = stem.tokens[start:end]
    if not stem.is_scored or not tokens:
        return PrefillChunk(stem.slot, start, tokens, sample, keeps=keeps)
    alternatives = stem.request.spec.sampling.prompt_logprobs or 0
    targets = stem.tokens[start + 1 : end + 1]
    return PrefillChunk(stem.slot, start, tokens, sample, targets, alternatives, keeps)


def _finish_stem(state: EngineState, draft: StepDraft, stem: Stem) -> None:
    """The last chunk is in this step: what happens to the members does not depend on what they draw."""
    state.prefilling.remove(stem)
    hold = stem.request.spec.hold
    for member in stem.waiting_members:
        assert member.slot is not None
        draft.samples[member.slot] = member
        member.kv_tokens = len(stem.tokens)
        if hold or member.kv_tokens > member.last_row:
            member.stage = SequenceStage.ENDING
    if stem.waiting_members:
        stem.stage = StemStage.BRANCHING
        state.branching.append(stem)
        return
    stem.stage = StemStage.HELD
    for member in stem.members:
        close_slot(state, member)
