"""The border of a model directory: no file outside it is read as a part of the model.

Weights, configuration, tokenizer and template are sent on to gateways, and from there to clients. In a directory from a
stranger, a link could name any file that the worker may read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from baton_wire.models.config_fields import ConfigFields, JsonObject
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.heads import read_activation
from baton_wire.models.parsing import parse_spec
from baton_wire.models.pooling import MODULES, PROMPTS, Judgement, read_pooling, read_prompts

TOKENIZER: Final = "tokenizer.json"
MAX_JSON_BYTES: Final = 16 << 20
"""A config.json has a few KB, the index of a very large model a few hundred; more is a mistake or an attack."""


def read_json_object(path: Path) -> JsonObject:
    """The JSON object in a file. Raises ModelConfigError when it is missing, too large, not JSON, or not an object."""
    parsed = _read_json(path)
    if not isinstance(parsed, dict):
        raise ModelConfigError(f"{path}: must hold a JSON object, not {type(parsed).__name__}")
    return parsed


def _read_json(path: Path) -> object:
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise ModelConfigError(f"{path.name}: {size} bytes is more than the allowed {MAX_JSON_BYTES}")
        parsed: object = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except OSError as error:
        raise ModelConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path}: is not valid JSON: {error}") from error
    return parsed


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def outside(directory: Path, name: str) -> Path | None:
    """The target of a link that leads out of the directory; None when the file is inside."""
    target = (directory / name).resolve()
    return None if target.is_relative_to(directory.resolve()) else target


def model_file(directory: Path, name: str) -> Path | None:
    """A file of the directory; None when it has none of that name. Raises ModelConfigError for a link out of it."""
    path = directory / name
    if path.is_symlink() and (target := outside(directory, name)) is not None:
        raise ModelConfigError(f"{name}: is a link to {target}, outside the model directory, which is refused")
    return path if path.is_file() else None


def read_spec(directory: Path) -> DecoderSpec:
    """The model of a directory: config.json, stop ids from generation_config.json, and the pooling of a
    sentence-transformers folder. Raises ModelConfigError."""

    def read(name: str) -> JsonObject | None:
        path = model_file(directory, name)
        return None if path is None else read_json_object(path)

    config = read_json_object(model_file(directory, "config.json") or directory / "config.json")
    spec = parse_spec(config, read("generation_config.json") or {})
    modules = model_file(directory, MODULES)
    if modules is None:
        return spec
    options = read(PROMPTS) or {}
    read_prompts(options)
    if spec.labels and "activation_fn" in options:
        spec = replace(spec, label_activation=read_activation(ConfigFields(options, f"{PROMPTS}: ")))
    pooling = read_pooling(_read_json(modules), read, config, spec.hidden_size)
    if pooling.judgement is not None:
        _check_judgement(pooling.judgement, read(TOKENIZER) or {})
    return replace(spec, pooling=pooling)


def _check_judgement(judgement: Judgement, tokenizer: JsonObject) -> None:
    """Check that a reranker's answers are the tokens `yes` and `no`, which gateways look up. Raises
    ModelConfigError."""
    model = tokenizer.get("model")
    ids = model.get("vocab") if isinstance(model, dict) else None
    for field, word, token in (("true_token_id", "yes", judgement.yes), ("false_token_id", "no", judgement.no)):
        expected = ids.get(word) if isinstance(ids, dict) else None
        if token != expected:
            allowed = "one whose tokenizer has it" if expected is None else str(expected)
            text = f"{field}: {token} is not supported; allowed: {allowed}, the id of {word!r} in {TOKENIZER}"
            raise ModelConfigError(f"LogitScore: {text}")
