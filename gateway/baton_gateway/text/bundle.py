"""The tokenizer bundle of a model revision: what a worker sends on connect, checked and parsed.

The bundle is a JSON object of file names to file texts, named by its SHA-256. This file decides which special tokens,
end ids and template a model has; rendering is `template`'s, tokens are `text`'s business.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.errors import BundleError
from baton_gateway.text.generation_defaults import OF_THE_API, GenerationDefaults, read_defaults

_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Bundle:
    """Everything about text that a model revision brings along."""

    hash: str
    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    """Names as templates know them (`bos_token`, …) to texts."""
    eos_ids: tuple[int, ...]
    """Ids from the model's own files; the id of `eos_token` is added where the tokenizer is loaded."""
    generation: GenerationDefaults = OF_THE_API
    """Sampling where a request leaves it open, as the model's authors want it."""
    config_json: str = ""
    """The model's `config.json` as it is; empty when the bundle has none."""
    control_tokens: tuple[str, ...] = ()
    """Texts of all special tokens, known once the tokenizer is loaded. A client's text never becomes one in a chat."""


def parse_bundle(data: bytes, expected_hash: str) -> Bundle:
    """Check the hash and read the files. Raises BundleError that names the offending file."""
    if (found := hashlib.sha256(data).hexdigest()) != expected_hash:
        raise BundleError(f"tokenizer bundle: hash is {found[:12]}…, announced was {expected_hash[:12]}…")
    try:
        files = msgspec.json.decode(data, type=dict[str, str | None])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"tokenizer bundle: {error}") from error
    tokenizer_json = files.get("tokenizer.json")
    if not tokenizer_json:
        raise BundleError("tokenizer bundle: tokenizer.json is missing")
    config = _object(files, "tokenizer_config.json")
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
    )


def _object(files: dict[str, str | None], name: str) -> dict[str, Any]:
    text = files.get(name)
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise BundleError(f"tokenizer bundle: {name}: {error}") from error


def _template(config: dict[str, Any]) -> str | None:
    """The template named `default` where there are several, else the only one."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_NAMES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _eos_ids(files: dict[str, str | None]) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        ids = _object(files, name).get("eos_token_id")
        if isinstance(ids, int) and not isinstance(ids, bool):
            return (ids,)
        if isinstance(ids, list) and ids and all(type(token) is int for token in ids):
            return tuple(ids)
    return ()
