"""Admit prompts to a step, besides its running rows: whole prompts, several a step, within a budget of tokens.

Order: started prompts, preempted sequences, then new prompts by their turns. While nothing decodes, no prompt is added
to a step that is long enough without it, so that earlier prompts get their first token sooner. A prompt starts when all
its blocks and slots are available, so a started prompt never waits for memory; groups with a window give blocks back as
it advances. Prompts are cut only when they exceed the budget. If a prompt is computed before its grammar is compiled,
its logits are kept, and a chunk without tokens draws from them. A prompt whose beginning another prompt is computing
waits until that part is published, and then computes the rest alone.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from typing import Final

from baton_engine.scheduling.engine_state import (
    EngineState,
    announce,
    close_slot,
    leave_stage,
    may_draw,
    may_take_slots,
)
from baton_engine.scheduling.events import ChunkLaunched, Computing
from baton_engine.scheduling.sequence import Sequence, SequenceStage, SharedPrefix, SharedPrefixStage
from baton_engine.scheduling.step_draft import LaunchedChunk, StepDraft
from baton_engine.scheduling.step_plan import PrefillChunk

AWAITED_TOKENS: Final = 256
"""A prompt waits for others to compute this many of its tokens; fewer it computes again."""

ENCODED_TOKENS: Final = 2_048
"""Most tokens of an encoded prompt in one step."""


def fill_step(state: EngineState, draft: StepDraft) -> None:
    """Add prefill chunks to the step, admitting as many prompts as budget, blocks and slots allow."""
    rows = len(state.batch.rows)
    draft.budget = state.pieces.tokens(rows)
    for prefix in tuple(state.prefilling):
        _add_chunk(state, draft, prefix)
    for prefix in tuple(state.preempted):
        if not prefix.tokens and not prefix.members[0].is_settled:
            break  # its last token is still being computed
        if not _start(state, draft, prefix):
            break
    if not any(may_take_slots(state, prefix) and may_draw(state, prefix) for prefix in state.landed):
        _admit_new(state, draft)


def _admit_new(state: EngineState, draft: StepDraft) -> None:
    waiting_for_blocks = [*state.preempted[:1], *itertools.islice(state.queued.values(), 1)]
    enough = state.pieces.enough_tokens(len(state.batch.rows))
    for prefix in tuple(state.waiting.values()):
        if draft.prefill_tokens >= enough:
            break
        if any(other.order < prefix.order for other in waiting_for_blocks):
            break  # that one's turn is earlier
        if _exceeds_share(state, prefix) or not may_take_slots(state, prefix):
            continue
        if _awaits_beginning(state, draft, prefix):
            continue
        if not _start(state, draft, prefix):
            break


def _awaits_beginning(state: EngineState, draft: StepDraft, prefix: SharedPrefix) -> bool:
    """True while another prompt computes enough of this one's beginning, which is not published yet."""
    config = state.config
    if not config.prefix_cache or not prefix.reads_cache:
        return False
    in_flight = (chunk.prefix for step in state.in_flight for chunk in step.chunks)
    others = {id(other): other for other in (*state.prefilling, *in_flight, *(chunk.prefix for chunk in draft.chunks))}
    for other in others.values():
        if other.request.root != prefix.request.root or not other.digests:
            continue
        _tokens(prefix)
        prefix.fill_digests(config.block_tokens)
        common = _common_length(prefix.digests, other.digests)
        coming = common * config.block_tokens - other.done_tokens
        if coming >= AWAITED_TOKENS and not state.pool.is_held(prefix.digests[common - 1]):
            return True
    return False


def _common_length(digests: list[bytes], others: list[bytes]) -> int:
    """Number of digests with which two chains begin alike."""
    return bisect_left(range(min(len(digests), len(others))), True, key=lambda place: digests[place] != others[place])


def _exceeds_share(state: EngineState, prefix: SharedPrefix) -> bool:
    """True for a held prompt that must wait because too much KV already waits for grants.

    One prompt may be held whatever the share, if the longest context still fits next to it.
    """
    if not prefix.request.spec.hold or prefix.request.is_granted:
        return False
    config = state.config
    blocks = config.blocks_for(len(_tokens(prefix))) * state.pool.groups
    most = config.max_held_blocks if state.ungranted_blocks else config.blocks_beside_a_context
    return state.ungranted_blocks + blocks > most


def _start(state: EngineState, draft: StepDraft, prefix: SharedPrefix) -> bool:
    """Give the prefix its blocks and slots and add its first chunk; False when something is missing."""
    pool, config, watermark = state.pool, state.config, state.watermark
    if draft.prefill_tokens >= draft.budget or prefix.failed_at == (pool.gains, watermark):
        return False
    members = prefix.waiting_members
    if len(members) > state.slots.available:
        return False
    _tokens(prefix)
    if prefix.is_published:
        prefix.fill_digests(config.block_tokens)
    # At least one token is computed: the first output is drawn from its logits.
    reads_cache = config.prefix_cache and prefix.reads_cache
    hits = pool.match(prefix.digests, (len(prefix.tokens) - 1) // config.block_tokens) if reads_cache else []
    cached = len(hits) // pool.groups * config.block_tokens
    if not _size_of_next(state, draft, prefix, len(prefix.tokens) - cached):
        return False
    missing = config.blocks_for(len(prefix.tokens)) - len(hits) // pool.groups
    if pool.available - pool.evictable(hits) - missing * pool.groups < watermark:
        prefix.failed_at = (pool.gains, watermark)
        if prefix.stage is SharedPrefixStage.WAITING:
            state.blocked = prefix
        return False
    _open(state, draft, prefix, members, hits, missing)
    _add_chunk(state, draft, prefix)
    return True


def _tokens(prefix: SharedPrefix) -> tuple[int, ...]:
    """The prefix's tokens, put together once."""
    if not prefix.tokens:
        prefix.tokens = prefix.members[0].context()
    return prefix.tokens


def _open(
    state: EngineState, draft: StepDraft, prefix: SharedPrefix, members: list[Sequence], hits: list[int], missing: int
) -> None:
    cached = len(hits) // state.pool.groups * state.config.block_tokens
    if prefix.stage is SharedPrefixStage.WAITING:
        state.turns.began(prefix.request.start_tag, prefix.request.cost)
        prefix.request.cached_tokens = cached
    leave_stage(state, prefix)
    prefix.stage = SharedPrefixStage.PREFILLING
    state.pool.share(prefix.owner, hits)
    state.pool.allocate(prefix.owner, missing)
    prefix.cached_tokens = prefix.planned_tokens = prefix.done_tokens = cached
    state.prompt_tokens += len(prefix.tokens)
    state.cached_prompt_tokens += cached
    for member in members:
        member.slot = state.slots.take(prefix.request.flow)
        draft.open(member, cached, None)
    prefix.slot = members[0].slot
    assert prefix.slot is not None
    draft.set_blocks(prefix.slot, state.pool.table(prefix.owner), state.pool.groups)
    state.prefilling.append(prefix)
    state.prefilling.sort(key=lambda prefix: prefix.order)
    request = prefix.request
    if request.spec.hold:
        if not request.is_granted:
            request.held_blocks = state.pool.held(prefix.owner)
            state.ungranted_blocks += request.held_blocks
        if cached:
            announce(state, prefix)


def _chunk_size(state: EngineState, draft: StepDraft, rest: int) -> int:
    """Choose how many of a prompt's `rest` tokens go into this step: all, a chunk, or none."""
    config = state.config
    left = draft.budget - draft.prefill_tokens
    if rest <= left:
        return rest
    if rest <= draft.budget and not draft.is_shared:
        return 0  # whole in the next step
    others = len(state.prefilling) + len(state.preempted) + len(state.waiting)
    if others <= 1:
        return left
    chunk = min(config.chunk, draft.budget)
    return chunk if chunk <= left else 0


def _size_of_next(state: EngineState, draft: StepDraft, prefix: SharedPrefix, rest: int) -> int:
    """How many of a prompt's `rest` tokens go into this step.

    An encoded prompt is cut at the same places whatever else is in its steps, so that its result is the same.
    """
    if prefix.request.spec.encoding is None:
        return _chunk_size(state, draft, rest)
    size = min(rest, state.config.chunk, ENCODED_TOKENS)
    return size if size <= draft.budget - draft.prefill_tokens or not draft.prefill_tokens else 0


def _add_chunk(state: EngineState, draft: StepDraft, prefix: SharedPrefix) -> None:
    rest = len(prefix.tokens) - prefix.planned_tokens
    can_draw = may_draw(state, prefix)
    size = _size_of_next(state, draft, prefix, rest)
    if size == 0 and (rest or not can_draw):
        return
    start = prefix.planned_tokens
    prefix.planned_tokens = end = start + size
    draft.prefill_tokens += size
    is_last = size == rest and can_draw
    draft.is_shared = draft.is_shared or size < rest
    draws = is_last and prefix.request.spec.encoding is None
    sample = tuple(member.slot for member in prefix.waiting_members if member.slot is not None) if draws else ()
    draft.prefill.append(_chunk(prefix, start, end, sample, keeps=size == rest and not can_draw))
    draft.chunks.append(LaunchedChunk(prefix, start, end, is_last))
    if prefix.request.spec.hold and size:
        prefix.request.is_announced = True  # from now on a transfer may be reading its blocks
        table = tuple(state.pool.table(prefix.owner))
        state.events.append(Computing(prefix.request.key, draft.step, end, table))
    elif size:
        state.events.append(ChunkLaunched(prefix.request.key))
    if is_last:
        _finish_prefix(state, draft, prefix)


def _chunk(prefix: SharedPrefix, start: int, end: int, sample: tuple[int, ...], *, keeps: bool) -> PrefillChunk:
    assert prefix.slot is not None
    tokens, encoding = prefix.tokens[start:end], prefix.request.spec.encoding
    if encoding is not None:
        return PrefillChunk(prefix.slot, start, tokens, encoding=encoding, ends=end == len(prefix.tokens))
    if not prefix.is_scored or not tokens:
        return PrefillChunk(prefix.slot, start, tokens, sample, keeps=keeps)
    alternatives = prefix.request.spec.sampling.prompt_logprobs or 0
    targets = prefix.tokens[start + 1 : end + 1]
    return PrefillChunk(prefix.slot, start, tokens, sample, targets, alternatives, keeps)


def _finish_prefix(state: EngineState, draft: StepDraft, prefix: SharedPrefix) -> None:
    """Move the members on, because the last chunk is in this step. It does not matter which tokens they draw."""
    state.prefilling.remove(prefix)
    if prefix.request.spec.encoding is not None:
        for member in prefix.waiting_members:
            member.stage = SequenceStage.FINISHING
        prefix.stage = SharedPrefixStage.HELD  # until the result of this step
        return
    hold = prefix.request.spec.hold
    for member in prefix.waiting_members:
        assert member.slot is not None
        draft.samples[member.slot] = member
        member.kv_tokens = len(prefix.tokens)
        if hold or member.kv_tokens > member.last_row:
            member.stage = SequenceStage.FINISHING
    if prefix.waiting_members:
        prefix.stage = SharedPrefixStage.BRANCHING
        state.branching.append(prefix)
        return
    prefix.stage = SharedPrefixStage.HELD
    for member in prefix.members:
        close_slot(state, member)
