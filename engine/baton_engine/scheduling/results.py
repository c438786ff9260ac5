"""Apply a step's result: hand tokens to their sequences, end finished ones, publish KV that is now complete."""

from __future__ import annotations

from baton_engine.memory.blocks import BlockOwner
from baton_engine.scheduling.engine_state import (
    EngineState,
    announce,
    drop_request,
    drop_unseen,
    end_sequence,
    publish,
    stop_request,
)
from baton_engine.scheduling.events import Drawn, Failed, Prefilled, PromptEncoded, PromptScored
from baton_engine.scheduling.sequence import Sequence, SequenceStage, SharedPrefix, SharedPrefixStage
from baton_engine.scheduling.step_draft import LaunchedChunk, LaunchedStep
from baton_engine.scheduling.step_plan import SlotTokens, StepResult
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Finish, Reason
from baton_wire.rules.prefix_digests import block_digest

DEVICE_TIME_TOKENS = 16
"""A request's share of the time of steps is reported with the first two tokens of this many, because a decode worker
draws the second one first, and with the last token of a choice."""


def read_result(state: EngineState, result: StepResult, now: float) -> None:
    """Take the result of the oldest launched step. Its requests share its time by the tokens that it computed for them.
    Raises RuntimeError when it is another step's."""
    launched = state.in_flight[0] if state.in_flight else None
    if launched is None or launched.step != result.step:
        raise RuntimeError(f"result of step {result.step}, expected {launched and launched.step}")
    state.in_flight.popleft()
    state.pool.collect(result.step)
    state.slots.collect(result.step)
    prompt_tokens = sum(chunk.end - chunk.start for chunk in launched.chunks)
    period_s = now - state.applied_s if launched.is_ahead else None
    state.applied_s = now
    state.pieces.observe(len(launched.rows), prompt_tokens, result.duration_s, period_s)
    token_s = state.config.devices * result.duration_s / max(1, len(launched.rows) + prompt_tokens)
    for chunk in launched.chunks:
        if chunk.end > chunk.start:
            chunk.prefix.request.device_s += token_s * (chunk.end - chunk.start)
            _advance_prefix(state, chunk)
    _report_prompts(state, launched, result)
    for tokens in result.tokens:
        sequence = _sequence_at(launched, tokens.slot)
        if tokens.slot in launched.rows:
            sequence.request.device_s += token_s
        if sequence.stage is not SequenceStage.DONE:  # else a surplus row: the sequence has ended meanwhile
            _receive(state, sequence, tokens)
    for failure in result.failures:
        sequence = _sequence_at(launched, failure.slot)
        if sequence.stage is not SequenceStage.DONE:
            state.events.append(Failed(sequence.request.key, Reason.GRAMMAR, failure.detail))
            stop_request(state, sequence.request)
    for chunk in launched.chunks:
        if chunk.is_last and chunk.prefix.request.spec.hold:
            _complete_held(state, chunk.prefix)


def _report_prompts(state: EngineState, launched: LaunchedStep, result: StepResult) -> None:
    """Report what is known of prompts: log probabilities, and the results of encoded ones, which end with them."""
    for scored in result.scored:
        chunk = launched.chunks[scored.chunk]
        request = chunk.prefix.request
        if not request.is_stopped and request.live:
            first = chunk.start + 1
            state.events.append(PromptScored(request.key, first, scored.logprobs))
    for encoded in result.encoded:
        request = launched.chunks[encoded.chunk].prefix.request
        if request.live:  # else it was cancelled meanwhile
            state.events.append(PromptEncoded(request.key, encoded.values, request.device_s))
            drop_request(state, request)


def _sequence_at(launched: LaunchedStep, slot: int) -> Sequence:
    """The sequence that had the slot when the step was launched."""
    sequence = launched.rows.get(slot) or launched.samples.get(slot)
    if sequence is None:
        raise RuntimeError(f"step {launched.step}: tokens for slot {slot}, which had no row in it")
    return sequence


def _advance_prefix(state: EngineState, chunk: LaunchedChunk) -> None:
    """Record the chunk's KV as complete, unless the prefix was preempted or dropped meanwhile: then its table is
    empty."""
    prefix = chunk.prefix
    owner = prefix.owner
    first, last = prefix.done_tokens // state.config.block_tokens, chunk.end // state.config.block_tokens
    prefix.done_tokens = chunk.end
    if prefix.stage is SharedPrefixStage.GONE:
        owner = _branched_owner(prefix) or owner
    if state.config.prefix_cache and prefix.is_published and state.pool.table(owner):
        publish(state, owner, prefix.digests, prefix.request.root, first, last)
    if prefix.stage is not SharedPrefixStage.GONE:  # else its branches drop unseen blocks as they grow
        drop_unseen(state, owner, chunk.end)
    if prefix.request.spec.hold and not prefix.request.is_stopped and prefix.request.live:
        announce(state, prefix)


def _branched_owner(prefix: SharedPrefix) -> BlockOwner | None:
    """A member that holds the prefix's full blocks after branching."""
    return next((m.owner for m in prefix.members if m.stage is not SequenceStage.DONE and m.prefix is None), None)


def _receive(state: EngineState, sequence: Sequence, tokens: SlotTokens) -> None:
    """Append one token to the sequence, and end it if the token does."""
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
    is_due = finish is not None or index % DEVICE_TIME_TOKENS <= 1
    device_s = request.device_s if is_due else None
    drawn = Drawn(spec.key, sequence.choice, index, tokens.ids, tokens.logprobs, finish, cached, device_s)
    state.events.append(drawn)
    if spec.hold:
        logprob = tokens.logprobs[0] if tokens.logprobs else None
        request.first_tokens.append(FirstToken(sequence.choice, token, logprob, finish))
        sequence.stage = SequenceStage.DONE
        return
    kv_tokens = spec.prompt_tokens + index
    if kv_tokens % state.config.block_tokens == 0 and sequence.prefix is None and state.config.prefix_cache:
        _publish_rows(state, sequence, kv_tokens // state.config.block_tokens)
    if finish is not None:
        end_sequence(state, sequence)


def _publish_rows(state: EngineState, sequence: Sequence, full_blocks: int) -> None:
    """Publish the sequence's first `full_blocks` blocks, as far as its prefix did not."""
    for index in range(len(sequence.digests), full_blocks):
        parent = sequence.digests[-1] if sequence.digests else sequence.request.root
        sequence.digests.append(block_digest(parent, sequence.block_ids(index, state.config.block_tokens)))
        publish(state, sequence.owner, sequence.digests, sequence.request.root, index, index + 1)


def _complete_held(state: EngineState, prefix: SharedPrefix) -> None:
    """Report a held prompt as prefilled: every choice has its first token."""
    request = prefix.request
    if request.is_stopped or prefix.stage is not SharedPrefixStage.HELD or not request.first_tokens:
        return
    by_choice = {first.choice: first for first in request.first_tokens}
    first_tokens = tuple(by_choice[choice] for choice in request.spec.choices if choice in by_choice)
    state.events.append(Prefilled(request.key, first_tokens))
