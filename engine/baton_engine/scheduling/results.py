"""Reading a step's result: tokens to their sequences, ends, and which KV stands from now on."""

from __future__ import annotations

from baton_engine.memory.blocks import BlockOwner
from baton_engine.memory.prefix import block_digest
from baton_engine.scheduling.engine_state import EngineState, announce, drop_unseen, end_sequence, publish, stop_request
from baton_engine.scheduling.events import Drawn, Failed, Prefilled, PromptScored
from baton_engine.scheduling.sequence import Sequence, SequenceStage, Stem, StemStage
from baton_engine.scheduling.step_draft import LaunchedChunk, LaunchedStep
from baton_engine.scheduling.step_plan import SlotTokens, StepResult
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Finish, Reason


def read_result(state: EngineState, result: StepResult) -> None:
    """Take the result of the oldest launched step. Raises RuntimeError when it is another step's."""
    launched = state.in_flight[0] if state.in_flight else None
    if launched is None or launched.step != result.step:
        raise RuntimeError(f"result of step {result.step}, expected {launched and launched.step}")
    state.in_flight.popleft()
    state.pool.collected(result.step)
    state.slots.collected(result.step)
    prompt_tokens = sum(chunk.end - chunk.start for chunk in launched.chunks)
    state.pieces.observe(len(launched.rows), prompt_tokens, result.duration_s)
    for chunk in launched.chunks:
        if chunk.end > chunk.start:
            _advance_stem(state, chunk)
    for scored in result.scored:
        chunk = launched.chunks[scored.chunk]
        request = chunk.stem.request
        if not request.is_stopped and request.live:
            first = chunk.start + 1
            state.events.append(PromptScored(request.key, first, scored.logprobs))
    for tokens in result.tokens:
        sequence = _drawing(launched, tokens.slot)
        if sequence.stage is not SequenceStage.DONE:  # else the surplus row of a sequence that has ended meanwhile
            _receive(state, sequence, tokens)
    for failure in result.failures:
        sequence = _drawing(launched, failure.slot)
        if sequence.stage is not SequenceStage.DONE:
            state.events.append(Failed(sequence.request.key, Reason.GRAMMAR, failure.detail))
            stop_request(state, sequence.request)
    for chunk in launched.chunks:
        if chunk.is_last and chunk.stem.request.spec.hold:
            _complete_held(state, chunk.stem)


def _drawing(launched: LaunchedStep, slot: int) -> Sequence:
    sequence = launched.rows.get(slot) or launched.samples.get(slot)
    if sequence is None:
        raise RuntimeError(f"step {launched.step}: tokens for slot {slot}, which had no row in it")
    return sequence


def _advance_stem(state: EngineState, chunk: LaunchedChunk) -> None:
    """The chunk's KV stands, unless the stem was preempted or dropped meanwhile: then its table is empty."""
    stem = chunk.stem
    owner = stem.owner
    first, last = stem.done_tokens // state.config.block_tokens, chunk.end // state.config.block_tokens
    stem.done_tokens = chunk.end
    if stem.stage is StemStage.GONE:
        owner = _heir(stem) or owner
    if state.config.prefix_cache and state.pool.table(owner):
        publish(state, owner, stem.digests, stem.request.root, first, last)
    if stem.stage is not StemStage.GONE:  # else its heirs drop what they do not see as they grow
        drop_unseen(state, owner, chunk.end)
    if stem.request.spec.hold and not stem.request.is_stopped and stem.request.live:
        announce(state, stem)


def _heir(stem: Stem) -> BlockOwner | None:
    """After branching, a member that holds the stem's full blocks."""
    return next((m.owner for m in stem.members if m.stage is not SequenceStage.DONE and m.stem is None), None)


def _receive(state: EngineState, sequence: Sequence, tokens: SlotTokens) -> None:
    """One more token of the sequence."""
    (token,) = tokens.ids
    outputs = sequence.outputs
    index = len(outputs)
    outputs.append(token)
    request = sequence.request
    spec = request.spec
    finish: Finish | None = None
    # A grammar allows stop ids only where the answer may end. Before `min_tokens` that means: where it must.
    may_stop = index >= spec.sampling.min_tokens or spec.sampling.grammar is not None
    if token in sequence.stop_ids and may_stop:
        finish = Finish.STOP
    elif index + 1 >= sequence.limit:
        finish = Finish.LENGTH
    cached = request.cached_tokens if index == 0 else None
    state.events.append(Drawn(spec.key, sequence.choice, index, tokens.ids, tokens.logprobs, finish, cached))
    if spec.hold:
        logprob = tokens.logprobs[0] if tokens.logprobs else None
        request.first_tokens.append(FirstToken(sequence.choice, token, logprob, finish))
        sequence.stage = SequenceStage.DONE
        return
    kv_tokens = spec.prompt_tokens + index
    if kv_tokens % state.config.block_tokens == 0 and sequence.stem is None and state.config.prefix_cache:
        _publish_rows(state, sequence, kv_tokens // state.config.block_tokens)
    if finish is not None:
        end_sequence(state, sequence)


def _publish_rows(state: EngineState, sequence: Sequence, full_blocks: int) -> None:
    """The sequence's first `full_blocks` blocks stand; publish those that its stem did not."""
    for index in range(len(sequence.digests), full_blocks):
        parent = sequence.digests[-1] if sequence.digests else sequence.request.root
        sequence.digests.append(block_digest(parent, sequence.block_ids(index, state.config.block_tokens)))
        publish(state, sequence.owner, sequence.digests, sequence.request.root, index, index + 1)


def _complete_held(state: EngineState, stem: Stem) -> None:
    """Every choice of a held prompt has its first token."""
    request = stem.request
    if request.is_stopped or stem.stage is not StemStage.HELD or not request.first_tokens:
        return
    by_choice = {first.choice: first for first in request.first_tokens}
    firsts = tuple(by_choice[choice] for choice in request.spec.choices if choice in by_choice)
    state.events.append(Prefilled(request.key, firsts))
