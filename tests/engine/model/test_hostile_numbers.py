"""Every number of a published config.json at unpublished values: refused by its field, or carried by all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from baton_engine.model.layers.rope import attention_factor, inverse_frequencies
from baton_testing.kv_transfer.builders import fingerprint
from baton_testing.published.configs import PUBLISHED
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.gateway_link import Hello, ToGateway
from baton_wire.messages.values import Role, SamplingParams
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.parsing import MAX_EOS_IDS, parse_spec

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 10**9, (1 << 31) - 1, 1 << 31, 1 << 40, 1 << 53, 1 << 63, 1 << 70),
    *(1e-300, 5e-324, 1e12, 1e300, float("inf"), float("nan"), -0.0),
)
MODELS = {
    config["model_type"]: config
    for config in (published.config for published in PUBLISHED.values())
}  # fmt: skip


def places(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers are; of a list the first one."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from places(value, (*path, name))
    elif isinstance(config, list) and config:
        yield from places(config[0], (*path, 0))
    elif isinstance(config, int | float) and not isinstance(config, bool):
        yield path


def changed(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result: Any = copy.deepcopy(config)
    inner = result
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return dict(result)


def check_carried(spec: DecoderSpec) -> None:
    """The model's sizes fit the wire, and computing with its positions gives finite numbers."""
    shape = {"layers": spec.num_layers, "kv_heads": spec.num_kv_heads, "head_dim": spec.head_dim}
    own = msgspec.structs.replace(fingerprint(), **shape)
    context = spec.context_within(None)
    hello = Hello(Role.DECODE, bytes(16), own, "t", 7, "m", spec.vocab_size, context, 4, 8, 16, 9, "0" * 64, 1)
    assert decode(encode(hello), ToGateway) == hello
    encode(SamplingParams(max_tokens=1, stop_token_ids=spec.eos_token_ids))
    for rope in spec.ropes:
        if rope.rotated(spec.head_dim) >= 2:
            inverse = inverse_frequencies(rope, rope.rotated(spec.head_dim), context)
            angles = inverse.to(torch.float64) * context
            assert torch.isfinite(angles.cos() * attention_factor(rope.scaling)).all()


@pytest.mark.parametrize("family", MODELS)
def test_any_number_is_refused_by_its_field_or_carried(family: str) -> None:
    config = MODELS[family]
    check_carried(parse_spec(copy.deepcopy(config)))
    refused = 0
    for path in places(config):
        for value in NUMBERS:
            try:
                spec = parse_spec(changed(config, path, value))
            except ModelConfigError:
                refused += 1
            else:
                check_carried(spec)
    assert refused > 50


@pytest.mark.parametrize(
    ("ids", "is_taken"),
    [
        ([0, 127], True),
        (127, True),
        (128, False),
        ([4, 16_777_217], False),
        ([1 << 70], False),
        (list(range(128)), True),
        ([*range(127), 127, 0], True),
    ],
)
def test_end_ids_are_tokens_of_the_model(ids: Any, is_taken: bool) -> None:
    config = MODELS["llama"] | {"vocab_size": 128, "eos_token_id": None}
    for files in ((config | {"eos_token_id": ids}, {}), (config, {"eos_token_id": ids})):
        if is_taken:
            check_carried(parse_spec(*files))
        else:
            with pytest.raises(ModelConfigError, match="eos_token_id"):
                parse_spec(*files)


def test_more_end_ids_than_a_message_has_room_for_are_refused() -> None:
    config = MODELS["llama"] | {"eos_token_id": list(range(MAX_EOS_IDS + 1))}
    with pytest.raises(ModelConfigError, match=r"eos_token_id: .*at most 128"):
        parse_spec(config)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_attention_heads": 10**9}, "num_attention_heads"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 1e-300, "low_freq_factor": 1.0, "high_freq_factor": 4.0}},
         "rope_scaling.factor"),
        ({"rope_theta": 1e-300}, "rope_theta"),
        ({"rms_norm_eps": 1e-300}, "rms_norm_eps"),
        ({"hidden_size": 1 << 40}, "hidden_size"),
        ({"intermediate_size": 1 << 31}, "intermediate_size"),
        ({"max_position_embeddings": 1 << 62}, "max_position_embeddings"),
    ],
)  # fmt: skip
def test_numbers_that_once_passed_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelConfigError, match=named):
        parse_spec(MODELS["llama"] | {"rope_parameters": None} | changes)


def test_windows_that_make_more_kv_groups_than_a_hand_over_has_are_refused() -> None:
    kinds = ["full_attention", *["sliding_attention"] * 400]
    config = MODELS["gpt_oss"] | {"num_hidden_layers": 401, "layer_types": kinds}
    with pytest.raises(ModelConfigError, match=r"layer_types: .*at most 256 KV groups, not 401"):
        parse_spec(config)
    parse_spec(config | {"num_hidden_layers": 256, "layer_types": kinds[:256]})
