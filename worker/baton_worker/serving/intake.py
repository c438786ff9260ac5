"""From a gateway's message to a sequence for the engine, or to the reason why not.

Pure; both workers' policies stand on it.
"""

from __future__ import annotations

from dataclasses import dataclass

from baton_engine.scheduling.events import RequestKey, SequenceSpec
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.values import Reason, unpack_ids


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may ask of this worker; the same numbers are in Hello."""

    vocab_size: int
    max_context_tokens: int
    max_choices: int


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    detail: str


def sequence_spec(message: Prefill | Reserve, limits: Limits, now: float, *, hold: bool) -> SequenceSpec | Refusal:
    """Check the message against the limits. `now` is on the engine's clock, on which the spec's deadline is set."""
    try:
        tokens = tuple(unpack_ids(message.tokens))
    except ValueError as error:
        return Refusal(Reason.BAD_REQUEST, str(error))
    if not tokens:
        return Refusal(Reason.BAD_REQUEST, "tokens: empty; at least one token is needed")
    if max(tokens) >= limits.vocab_size:
        return Refusal(
            Reason.BAD_REQUEST, f"tokens: {max(tokens)} is not below the vocabulary size {limits.vocab_size}"
        )
    if not 1 <= message.prompt_tokens <= len(tokens):
        return Refusal(Reason.BAD_REQUEST, f"prompt_tokens: {message.prompt_tokens} is not between 1 and {len(tokens)}")
    if len(set(message.choices)) != len(message.choices) or len(message.choices) > limits.max_choices:
        return Refusal(
            Reason.BAD_REQUEST, f"choices: {message.choices} must be distinct and at most {limits.max_choices}"
        )
    generated = len(tokens) - message.prompt_tokens
    if generated and len(message.choices) > 1:
        return Refusal(Reason.BAD_REQUEST, "choices: a continued request continues one choice")
    if len(tokens) >= limits.max_context_tokens:
        return Refusal(
            Reason.TOO_LONG, f"tokens: {len(tokens)} leave no room in a context of {limits.max_context_tokens}"
        )
    if generated >= message.sampling.max_tokens:
        return Refusal(Reason.BAD_REQUEST, f"max_tokens: {message.sampling.max_tokens} are already generated")
    return SequenceSpec(
        key=RequestKey(message.request, message.attempt),
        tokens=tokens,
        prompt_tokens=message.prompt_tokens,
        choices=message.choices,
        sampling=message.sampling,
        salt=message.salt,
        deadline_s=now + message.timeout_s,
        hold=hold,
    )
