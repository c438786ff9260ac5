"""Turn a gateway's message into a request for the engine, or into the reason why not. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from baton_engine.scheduling.events import Failed, SequenceSpec
from baton_engine.scheduling.request_validation import refusal
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.values import Reason, RequestKey, SamplingParams, unpack_ids
from baton_worker.building.parts import RequestLimits


def sequence_spec(
    message: Prefill | Reserve, limits: RequestLimits, now: float, *, hold: bool
) -> SequenceSpec | Failed:
    """Check the message against the limits. `now` is on the engine's clock, like the spec's deadline."""
    key = RequestKey(message.request, message.attempt)
    try:
        tokens = tuple(unpack_ids(message.tokens))
    except ValueError as error:
        return Failed(key, Reason.BAD_REQUEST, str(error))
    if (largest := max(tokens, default=0)) >= limits.vocab_size:
        detail = f"tokens: {largest} is not below the vocabulary size {limits.vocab_size}"
        return Failed(key, Reason.BAD_REQUEST, detail)
    for name, ids in _other_ids(message.sampling):
        if (largest := max(ids, default=0)) >= limits.vocab_size:
            detail = f"{name}: {largest} is not below the vocabulary size {limits.vocab_size}"
            return Failed(key, Reason.BAD_REQUEST, detail)
    if message.prompt_tokens < len(tokens) and len(message.choices) > 1:
        return Failed(key, Reason.BAD_REQUEST, "choices: a continued request continues one choice")
    if message.sampling.grammar is not None and not limits.follows_grammars:
        return Failed(key, Reason.GRAMMAR, "grammar: this worker only keeps time and follows none")
    spec = SequenceSpec(
        key=key,
        tokens=tokens,
        prompt_tokens=message.prompt_tokens,
        choices=message.choices,
        sampling=message.sampling,
        salt=message.salt,
        deadline_s=now + message.timeout_s,
        hold=hold,
        flow=message.flow or b"",
        tpot_s=message.tpot_s if isinstance(message, Reserve) else None,
        missing_tokens=message.missing_tokens,
    )
    problem = refusal(spec, limits.max_context_tokens, limits.max_choices)
    return spec if problem is None else Failed(key, *problem)


def _other_ids(sampling: SamplingParams) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Token ids besides the prompt's; the engine looks them all up in tables of its vocabulary."""
    yield "stop_token_ids", sampling.stop_token_ids
    yield "logit_bias", tuple(token for token, _ in sampling.logit_bias)
    if sampling.thought is not None:
        yield "thought", (*sampling.thought.start, *sampling.thought.end)
