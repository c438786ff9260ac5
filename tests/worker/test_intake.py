"""A gateway's message becomes a sequence, or a refusal that names the field."""

from __future__ import annotations

import dataclasses
import re

import pytest
from msgspec.structs import replace

from baton_engine.scheduling.events import Failed, SequenceSpec
from baton_wire.messages.encoding import Encode, Encoding, EncodingKind, EncodingLimits
from baton_wire.messages.gateway_link import Reserve
from baton_wire.messages.values import Grammar, Reason, RequestKey, SamplingParams, Thought, pack_ids
from baton_worker.building.parts import RequestLimits
from baton_worker.serving.intake import encoding_spec, sequence_spec

LIMITS = RequestLimits(vocab_size=100, max_context_tokens=32, max_choices=4)
MESSAGE = Reserve(
    request=b"r" * 16,
    attempt=1,
    tokens=pack_ids([1, 2, 3, 4]),
    prompt_tokens=4,
    choices=(0,),
    sampling=SamplingParams(max_tokens=8),
    timeout_s=30.0,
    salt="tenant",
    prefill_epoch=b"p" * 16,
)


def test_a_message_becomes_a_spec_with_a_deadline_on_the_engines_clock() -> None:
    spec = sequence_spec(MESSAGE, LIMITS, now=100.0, hold=True)
    assert isinstance(spec, SequenceSpec)
    assert spec.key == RequestKey(b"r" * 16, 1)
    assert spec.tokens == (1, 2, 3, 4)
    assert spec.deadline_s == 130.0
    assert spec.hold
    assert spec.salt == "tenant"


@pytest.mark.parametrize(
    ("change", "reason", "names"),
    [
        ({"tokens": b"abc"}, Reason.BAD_REQUEST, "token ids"),
        ({"tokens": b"", "prompt_tokens": 1}, Reason.BAD_REQUEST, "tokens: empty"),
        ({"tokens": pack_ids([1, 100])}, Reason.BAD_REQUEST, "vocabulary size 100"),
        ({"sampling": SamplingParams(max_tokens=8, stop_token_ids=(100,))}, Reason.BAD_REQUEST, "stop_token_ids: 100"),
        ({"sampling": SamplingParams(max_tokens=8, logit_bias=((100, 1.0),))}, Reason.BAD_REQUEST, "logit_bias: 100"),
        ({"sampling": SamplingParams(max_tokens=8, thought=Thought((100,)))}, Reason.BAD_REQUEST, "thought: 100"),
        ({"sampling": SamplingParams(max_tokens=8, thought=Thought((1,), (100,)))}, Reason.BAD_REQUEST, "thought: 100"),
        ({"prompt_tokens": 0}, Reason.BAD_REQUEST, "prompt_tokens: 0"),
        ({"prompt_tokens": 5}, Reason.BAD_REQUEST, "prompt_tokens: 5"),
        ({"choices": (0, 0)}, Reason.BAD_REQUEST, "choices"),
        ({"choices": (0, 1, 2, 3, 4)}, Reason.BAD_REQUEST, "at most 4"),
        ({"prompt_tokens": 2, "choices": (0, 1)}, Reason.BAD_REQUEST, "continues one choice"),
        ({"prompt_tokens": 1, "sampling": SamplingParams(max_tokens=3)}, Reason.BAD_REQUEST, "max_tokens: 3"),
        ({"tokens": pack_ids([1] * 32)}, Reason.TOO_LONG, "context of 32"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(change: dict[str, object], reason: Reason, names: str) -> None:
    refusal = sequence_spec(replace(MESSAGE, **change), LIMITS, now=0.0, hold=False)
    assert isinstance(refusal, Failed)
    assert refusal.reason is reason
    assert names in refusal.detail


def test_a_prompt_that_leaves_room_for_one_token_is_accepted() -> None:
    longest = replace(MESSAGE, tokens=pack_ids([1] * 31), prompt_tokens=31)
    assert isinstance(sequence_spec(longest, LIMITS, now=0.0, hold=False), SequenceSpec)


def test_a_worker_that_only_keeps_time_says_that_it_follows_no_grammar() -> None:
    bound = replace(MESSAGE, sampling=SamplingParams(max_tokens=8, grammar=Grammar("{}"), stop_token_ids=(2,)))
    assert isinstance(sequence_spec(bound, LIMITS, now=0.0, hold=False), SequenceSpec)
    refusal = sequence_spec(bound, dataclasses.replace(LIMITS, follows_grammars=False), now=0.0, hold=False)
    assert isinstance(refusal, Failed)
    assert refusal.reason is Reason.GRAMMAR
    assert "only keeps time" in refusal.detail


ENCODE = Encode(
    request=b"r" * 16,
    attempt=1,
    tokens=pack_ids([1, 2, 3, 4]),
    output=Encoding(EncodingKind.EMBEDDING),
    timeout_s=30.0,
    salt="tenant",
)
EMBEDS = EncodingLimits(8, generates=False)
LABELS = EncodingLimits(8, labels=2, generates=False, embeds=False)
RANKS = EncodingLimits(8, generates=False, embeds=False, reranks=True)
OF_LABELS = Encoding(EncodingKind.LABELS)
OF_TOKENS = Encoding(EncodingKind.TOKENS, token_ids=(5, 6))


@pytest.mark.parametrize(
    ("limits", "output"),
    [(EMBEDS, ENCODE.output), (LABELS, OF_LABELS), (RANKS, OF_TOKENS), (EncodingLimits(8), OF_TOKENS)],
)
def test_a_prompt_to_encode_becomes_a_spec_of_its_output(limits: EncodingLimits, output: Encoding) -> None:
    allowed = dataclasses.replace(LIMITS, encoding=limits)
    spec = encoding_spec(replace(ENCODE, output=output), allowed, now=100.0)
    assert isinstance(spec, SequenceSpec)
    assert (spec.encoding, spec.deadline_s, spec.prompt_tokens) == (output, 130.0, 4)


@pytest.mark.parametrize(
    ("limits", "change", "names"),
    [
        (None, {}, "output.kind: embedding.*encodes no prompts"),
        (EMBEDS, {"output": OF_LABELS}, "output.kind: labels.*allowed: embedding, tokens$"),
        (EMBEDS, {"output": Encoding(EncodingKind.EMBEDDING, dimensions=9)}, "dimensions: 9.*8"),
        (RANKS, {"output": Encoding(EncodingKind.TOKENS, token_ids=(100,))}, "token_ids: 100"),
        (EMBEDS, {"tokens": pack_ids([1, 100])}, "tokens: 100"),
    ],
)
def test_an_output_that_the_model_has_not_is_refused_by_name(
    limits: EncodingLimits | None, change: dict[str, object], names: str
) -> None:
    refusal = encoding_spec(replace(ENCODE, **change), dataclasses.replace(LIMITS, encoding=limits), now=0.0)
    assert isinstance(refusal, Failed)
    assert refusal.reason is Reason.BAD_REQUEST
    assert re.search(names, refusal.detail), refusal.detail
