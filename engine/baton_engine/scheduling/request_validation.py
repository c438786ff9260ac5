"""Validate a request on its own. A worker asks before it opens a request, the scheduler before it queues one.

Ids beyond the vocabulary are checked by the worker, which knows the model.
"""

from __future__ import annotations

from baton_engine.scheduling.events import SequenceSpec
from baton_wire.messages.values import Reason


def refusal(spec: SequenceSpec, max_context_tokens: int, max_choices: int) -> tuple[Reason, str] | None:
    """Reason why the engine can never serve this request; None: it can."""
    length, generated = len(spec.tokens), len(spec.tokens) - spec.prompt_tokens
    if not spec.tokens:
        return Reason.BAD_REQUEST, "tokens: empty; at least one token is needed"
    if not 1 <= spec.prompt_tokens <= length:
        return Reason.BAD_REQUEST, f"prompt_tokens: {spec.prompt_tokens} is not between 1 and {length}"
    if len(set(spec.choices)) != len(spec.choices) or not 1 <= len(spec.choices) <= max_choices:
        return (
            Reason.BAD_REQUEST,
            f"choices: {spec.choices} must be all different, at least 1 and at most {max_choices}",
        )
    if spec.encoding is not None:
        return _encoding_refusal(spec, max_context_tokens)
    if length >= max_context_tokens:
        return Reason.TOO_LONG, f"tokens: {length} leave no room in a context of {max_context_tokens}"
    if generated >= spec.sampling.max_tokens:
        return Reason.BAD_REQUEST, f"max_tokens: {spec.sampling.max_tokens} are already generated"
    if spec.sampling.grammar is not None and not spec.sampling.stop_token_ids:
        return Reason.BAD_REQUEST, "stop_token_ids: none, but an answer that follows a grammar ends with one"
    return None


def _encoding_refusal(spec: SequenceSpec, max_context_tokens: int) -> tuple[Reason, str] | None:
    """The same for a prompt that is encoded: it needs no room for an answer."""
    if len(spec.choices) != 1 or spec.prompt_tokens != len(spec.tokens) or spec.hold:
        return Reason.BAD_REQUEST, "encoding: needs one choice, no generated tokens and no hand-over"
    if len(spec.tokens) > max_context_tokens:
        return Reason.TOO_LONG, f"tokens: {len(spec.tokens)} exceed a context of {max_context_tokens}"
    return None
