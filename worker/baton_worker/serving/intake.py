"""Turn a gateway's message into a request for the engine, or into the reason why not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from baton_engine.scheduling.events import Failed, SequenceSpec
from baton_engine.scheduling.request_validation import refusal
from baton_wire.messages.encoding import Encode, EncodingKind
from baton_wire.messages.gateway_link import Prefill, Reserve
from baton_wire.messages.values import Reason, RequestKey, SamplingParams, unpack_ids
from baton_worker.building.parts import RequestLimits


def sequence_spec(
    message: Prefill | Reserve, limits: RequestLimits, now: float, *, hold: bool
) -> SequenceSpec | Failed:
    """Check the message against the limits. `now` is on the engine's clock, like the spec's deadline."""
    key = RequestKey(message.request, message.attempt)
    tokens = _read_tokens(message.tokens, limits)
    if isinstance(tokens, str):
        return Failed(key, Reason.BAD_REQUEST, tokens)
    if (fault := _find_unknown_id(_other_ids(message.sampling), limits)) is not None:
        return Failed(key, Reason.BAD_REQUEST, fault)
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


def encoding_spec(message: Encode, limits: RequestLimits, now: float) -> SequenceSpec | Failed:
    """The same for a prompt that is encoded."""
    key, output = RequestKey(message.request, message.attempt), message.output
    tokens = _read_tokens(message.tokens, limits)
    if isinstance(tokens, str):
        return Failed(key, Reason.BAD_REQUEST, tokens)
    if (fault := _find_unknown_id([("token_ids", output.token_ids)], limits)) is not None:
        return Failed(key, Reason.BAD_REQUEST, fault)
    allowed = limits.encoding
    if allowed is None:
        return Failed(key, Reason.BAD_REQUEST, f"output.kind: {output.kind}, but this worker encodes no prompts")
    if output.kind is EncodingKind.LABELS and not allowed.labels:
        return Failed(
            key, Reason.BAD_REQUEST, "output.kind: labels, but the model has none; allowed: embedding, tokens"
        )
    if output.dimensions is not None and output.dimensions > allowed.width:
        return Failed(key, Reason.BAD_REQUEST, f"dimensions: {output.dimensions} exceed the model's {allowed.width}")
    spec = SequenceSpec(
        key=key,
        tokens=tokens,
        prompt_tokens=len(tokens),
        choices=(0,),
        sampling=SamplingParams(max_tokens=1, temperature=0.0),
        salt=message.salt,
        deadline_s=now + message.timeout_s,
        flow=message.flow or b"",
        missing_tokens=message.missing_tokens,
        encoding=output,
    )
    problem = refusal(spec, limits.max_context_tokens, limits.max_choices)
    return spec if problem is None else Failed(key, *problem)


def _read_tokens(packed: bytes, limits: RequestLimits) -> tuple[int, ...] | str:
    """The ids, or why they are none of the model's."""
    try:
        tokens = tuple(unpack_ids(packed))
    except ValueError as error:
        return str(error)
    return _find_unknown_id([("tokens", tokens)], limits) or tokens


def _find_unknown_id(named: Iterable[tuple[str, tuple[int, ...]]], limits: RequestLimits) -> str | None:
    for name, ids in named:
        if (largest := max(ids, default=0)) >= limits.vocab_size:
            return f"{name}: {largest} is not below the vocabulary size {limits.vocab_size}"
    return None


def _other_ids(sampling: SamplingParams) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Token ids besides the prompt's; the engine looks them all up in tables of its vocabulary."""
    yield "stop_token_ids", sampling.stop_token_ids
    yield "logit_bias", tuple(token for token, _ in sampling.logit_bias)
    if sampling.thought is not None:
        yield "thought", (*sampling.thought.start, *sampling.thought.end)
