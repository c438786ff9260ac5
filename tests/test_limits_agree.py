"""Limits of the schema, the API, the wire, the configs and the engine: nothing an outer layer lets in is too much for
one within.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from typing import Any, get_args

import pytest
from msgspec import inspect

from baton_control.spec.engine_sizes import EngineSpec
from baton_control.spec.served_model import ModelSpec
from baton_gateway.openai_api import openai_types as api
from baton_gateway.requests import preparing
from baton_gateway.text.generation_defaults import MAX_TOP_K
from baton_wire.messages import gateway_link, pair_link, values
from baton_wire.messages.values import Role
from baton_wire.models import parsing, reading
from baton_worker import config as worker_config
from baton_worker.building import parts

INT32 = (1 << 31) - 1


def wire(kind: Any, field: str) -> int:
    """The greatest number, or the most entries or bytes, of a message's field."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    types: Any = next(entry.type for entry in info.fields if entry.name == field)
    if isinstance(types, inspect.UnionType):
        types = next(option for option in types.types if not isinstance(option, inspect.NoneType))
    if (most := getattr(types, "max_length", None)) is None:
        most = types.le if types.le is not None else types.lt - 1
    return int(most)


def schema(model: Any, field: str) -> int:
    info = model.model_fields[field]
    notes = [
        *info.metadata,
        *(note for kind in get_args(info.annotation) for note in getattr(kind, "__metadata__", ())),
    ]
    bounds = [bound for note in notes for bound in getattr(note, "metadata", [note])]
    return next(int(bound.le) for bound in bounds if getattr(bound, "le", None) is not None)


def flag(name: str) -> int:
    """The greatest value of a worker's flag."""
    action = next(flag for flag in worker_config.parser(Role.DECODE)._actions if name in flag.option_strings)
    low, high = 1, 1 << 62
    while low < high:
        middle = (low + high + 1) // 2
        try:
            action.type(str(middle))  # type: ignore[operator, misc]
        except argparse.ArgumentTypeError:
            high = middle - 1
        else:
            low = middle
    return low


CHAINS: dict[str, list[tuple[str, int]]] = {
    "tokens of a context": [
        ("spec.model.maxContextTokens", schema(ModelSpec, "max_context_tokens")),
        ("--max-context-tokens", flag("--max-context-tokens")),
        ("Hello.max_context_tokens", wire(gateway_link.Hello, "max_context_tokens")),
        ("Prefill.tokens", wire(gateway_link.Prefill, "tokens") // values.PACKED_ID_BYTES),
        ("Reserve.tokens", wire(gateway_link.Reserve, "tokens") // values.PACKED_ID_BYTES),
        ("Prefill.prompt_tokens", wire(gateway_link.Prefill, "prompt_tokens")),
        ("PromptLogprobs.first_index", wire(gateway_link.PromptLogprobs, "first_index")),
        ("TokenEntry.first_index", wire(values.TokenEntry, "first_index")),
        ("Grant.end_tokens", wire(pair_link.Grant, "end_tokens")),
        ("positions in the kernels, int32", INT32),
    ],
    "tokens of an answer": [
        ("max_tokens", api.MAX_TOKENS),
        ("SamplingParams.max_tokens", wire(values.SamplingParams, "max_tokens")),
        ("counts of tokens in the kernels, int32", INT32),
    ],
    "tokens before a stop id": [
        ("min_tokens", api.MAX_TOKENS),
        ("SamplingParams.min_tokens", wire(values.SamplingParams, "min_tokens")),
    ],
    "tokens of a thought": [
        ("max_thinking_tokens", api.MAX_TOKENS),
        ("Thought.max_tokens", wire(values.Thought, "max_tokens")),
    ],
    "choices": [
        ("n", api.MAX_CHOICES),
        ("a worker's choices", parts.MAX_CHOICES),
        ("Hello.max_choices", wire(gateway_link.Hello, "max_choices")),
        ("Prefill.choices", wire(gateway_link.Prefill, "choices")),
        ("Seal.first_tokens", wire(pair_link.Seal, "first_tokens")),
    ],
    "token ids": [
        ("ids of a client", api.MAX_TOKEN_ID),
        ("TokenEntry.ids", values.MAX_VOCAB - 1),
        ("token ids in the kernels, int32", INT32),
    ],
    "entries of logit_bias": [
        ("logit_bias", api.MAX_LOGIT_BIAS),
        ("SamplingParams.logit_bias", wire(values.SamplingParams, "logit_bias")),
    ],
    "stop ids": [
        ("a client's and a model's", api.MAX_STOP_IDS + preparing.MAX_END_IDS),
        ("SamplingParams.stop_token_ids", wire(values.SamplingParams, "stop_token_ids")),
    ],
    "end ids of a model": [
        ("config.json", parsing.MAX_EOS_IDS),
        ("what the gateway sends", preparing.MAX_END_IDS),
    ],
    "alternatives of a token": [
        ("top_logprobs", api.MAX_LOGPROBS),
        ("SamplingParams.logprobs", wire(values.SamplingParams, "logprobs")),
        ("TokenLogprob.top", wire(values.TokenLogprob, "top")),
        ("PromptLogprob.top", wire(values.PromptLogprob, "top")),
    ],
    "top_k": [
        ("a model's default", MAX_TOP_K),
        ("SamplingParams.top_k", wire(values.SamplingParams, "top_k")),
        ("top_k in the kernels, int32", INT32),
    ],
    "vocabulary": [
        ("config.json", values.MAX_VOCAB),
        ("Hello.vocab_size", wire(gateway_link.Hello, "vocab_size")),
    ],
    "layers": [
        ("config.json", reading.MAX_LAYERS),
        ("PairFingerprint.layers", wire(values.PairFingerprint, "layers")),
    ],
    "heads": [
        ("config.json", reading.MAX_HEADS),
        ("PairFingerprint.kv_heads", wire(values.PairFingerprint, "kv_heads")),
    ],
    "KV groups": [
        ("config.json", parsing.MAX_KV_GROUPS),
        ("Grant.groups", wire(pair_link.Grant, "groups")),
        ("Standing.groups", wire(pair_link.Standing, "groups")),
    ],
    "slots": [
        ("spec.engine.maxSequences", schema(EngineSpec, "max_sequences")),
        ("--max-sequences", flag("--max-sequences")),
        ("Hello.max_sequences", wire(gateway_link.Hello, "max_sequences")),
    ],
    "tokens of a block": [
        ("spec.engine.blockTokens", schema(EngineSpec, "block_tokens")),
        ("--block-tokens", flag("--block-tokens")),
        ("Hello.block_tokens", wire(gateway_link.Hello, "block_tokens")),
        ("PairHello.block_tokens", wire(pair_link.PairHello, "block_tokens")),
        ("Grant.unit_tokens", wire(pair_link.Grant, "unit_tokens")),
    ],
    "tokens of a step": [
        ("spec.engine.maxStepTokens", schema(EngineSpec, "max_step_tokens")),
        ("--max-step-tokens", flag("--max-step-tokens")),
    ],
    "requests that wait": [
        ("spec.engine.maxWaiting", schema(EngineSpec, "max_waiting")),
        ("--max-waiting", flag("--max-waiting")),
        ("Wait.position", wire(pair_link.Wait, "position")),
    ],
    "bytes of a landing region": [
        ("--landing-bytes", flag("--landing-bytes")),
        ("PairHello.landing_bytes", wire(pair_link.PairHello, "landing_bytes")),
        ("Span.offset", wire(pair_link.Span, "offset")),
    ],
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_an_outer_layer_lets_in_is_not_too_much_within(name: str) -> None:
    for (outer, most), (inner, room) in pairwise(CHAINS[name]):
        assert most <= room, f"{outer} lets {most} in, {inner} has room for {room}"


def test_a_limit_that_is_read_from_a_schema_or_a_flag_is_the_one_that_is_checked() -> None:
    assert schema(ModelSpec, "max_context_tokens") == flag("--max-context-tokens") == values.MAX_CONTEXT_TOKENS
