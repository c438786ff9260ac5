"""The tokenizer bundle of a model revision: what a worker sends on connect, checked and parsed.

The bundle is a JSON object of file names to file texts, named by its SHA-256. This module decides which special tokens,
end ids and template a model has. `chat_template` renders, `revision_text` tokenises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton_gateway.errors import BundleError
from baton_gateway.text.generation_defaults import API_DEFAULTS, GenerationDefaults, read_defaults
from baton_wire.models.errors import ModelConfigError
from baton_wire.models.pooling import MODULES, PROMPTS, TRANSFORMER_OPTIONS, read_longest_text, read_prompts

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files of a model revision that concern text, parsed."""

    hash: str
    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    """Texts by their names in templates (`bos_token`, …)."""
    eos_ids: tuple[int, ...]
    """End ids from the model's files; loading the tokenizer adds the id of `eos_token`."""
    generation: GenerationDefaults = API_DEFAULTS
    """The authors' sampling defaults, for fields that a request leaves out."""
    config_json: str = ""
    """The text of the model's `config.json`; empty if the bundle has none."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The texts that an embedding model wants before its inputs, by name."""
    default_prompt: str | None = None
    """Name of the prompt for requests that name none."""
    longest_text: int | None = None
    """The tokens after which the model's files cut a text that is embedded; None: they cut none."""
    labels: tuple[str, ...] = ()
    """Names of a classifier's labels."""
    control_tokens: tuple[str, ...] = ()
    """Texts of all special tokens, known once the tokenizer is loaded. In a chat a client's text never becomes one."""


def parse_bundle(data: bytes, expected_hash: str) -> Bundle:
    """Check the hash and read the files. Raises BundleError that names the offending file."""
    if (actual := hashlib.sha256(data).hexdigest()) != expected_hash:
        raise BundleError(f"tokenizer bundle: hash is {actual[:12]}…, announced was {expected_hash[:12]}…")
    try:
        files = msgspec.json.decode(data, type=dict[str, str | None])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"tokenizer bundle: {error}") from error
    tokenizer_json = files.get("tokenizer.json")
    if not tokenizer_json:
        raise BundleError("tokenizer bundle: tokenizer.json is missing")
    config = _object(files, "tokenizer_config.json")
    try:
        prompts, default_prompt = read_prompts(_object(files, PROMPTS))
        options = _object(files, TRANSFORMER_OPTIONS)
        longest_text = read_longest_text(options, config) if files.get(MODULES) else None
    except ModelConfigError as error:
        raise BundleError(f"tokenizer bundle: {error}") from error
    return Bundle(
        hash=expected_hash,
        tokenizer_json=tokenizer_json,
        chat_template=files.get("chat_template.jinja")
        or _template(config)
        or _template(_object(files, "chat_template.json")),
        special_tokens=_special_tokens(config),
        eos_ids=_eos_ids(files),
        generation=read_defaults(_object(files, "generation_config.json")),
        config_json=files.get("config.json") or "",
        prompts=prompts,
        default_prompt=default_prompt,
        longest_text=longest_text,
        labels=_labels(_object(files, "config.json")),
    )


def _object(files: dict[str, str | None], name: str) -> dict[str, Any]:
    text = files.get(name)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BundleError(f"tokenizer bundle: {name}: {error}") from error


def _labels(config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        return ()
    return tuple(names.get(str(number), f"LABEL_{number}") for number in range(len(names)))


def _template(config: dict[str, Any]) -> str | None:
    """Return the only template, or the one named `default` if there are several."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in SPECIAL_NAMES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _eos_ids(files: dict[str, str | None]) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        ids = _object(files, name).get("eos_token_id")
        if isinstance(ids, int) and not isinstance(ids, bool):
            return (ids,)
        if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
            return tuple(ids)
    return ()
