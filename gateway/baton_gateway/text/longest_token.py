"""The most text that one token can stand for: with it a prompt is refused by its size, before it is tokenised. Pure.

There is a bound for tokenizers that drop nothing: bytes, or characters with byte fallback, and normalizers that shorten
text by a known factor. Other tokenizers drop blanks or write any unknown word as one token, and have no bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from baton_gateway.text.token_pieces import BYTE_ALPHABET, byte_level_bytes

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_CANONICAL = 3
"""NFC and NFD shorten text to a third at most: the parts of a Hangul syllable, the Kelvin sign to K."""
_CUTS = ("Metaspace", "Split", "ByteLevel", "Digits", "Punctuation")
"""Steps that only cut text, unless their `behavior` is to remove."""


def longest_token_bytes(tokenizer_json: str) -> int | None:
    """Return the most UTF-8 bytes of a prompt that one token can stand for; None: no bound is known.

    Raises msgspec.DecodeError if the text is not a JSON object.
    """
    parts = msgspec.json.decode(tokenizer_json, type=dict[str, msgspec.Raw])
    normalizer, cutting = _value(parts, "normalizer"), _value(parts, "pre_tokenizer")
    factor = _factor(normalizer)
    added = _value(parts, "added_tokens") or []
    cuts = list(_flat(cutting, "pretokenizers"))
    if factor is None or any(map(_strips_blanks, added)) or any(map(_drops_text, cuts)):
        return None
    is_byte_level = any(step["type"] == "ByteLevel" for step in (*cuts, *_flat(normalizer, "normalizers")))
    model = msgspec.json.decode(parts.get("model", msgspec.Raw(b"{}")), type=dict[str, msgspec.Raw])
    longest = _longest({name: _value(model, name) for name in model if name != "merges"}, is_byte_level)
    if longest is None:
        return None
    return factor * max([longest, *(len(entry["content"].encode()) for entry in added)])


def _longest(model: Mapping[str, Any], is_byte_level: bool) -> int | None:
    vocabulary = model.get("vocab") or {}
    tokens: Iterable[str] = (entry[0] for entry in vocabulary) if isinstance(vocabulary, list) else vocabulary
    known = set(tokens)
    if model.get("type") not in ("BPE", "Unigram") or not known:
        return None
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        return None
    if is_byte_level:
        return max(len(byte_level_bytes(token)) for token in known) if known.issuperset(BYTE_ALPHABET) else None
    if model.get("byte_fallback") and sum(map(bool, map(_BYTE_TOKEN.fullmatch, known))) >= 256:
        return max(len(token.encode()) for token in known)
    return None


def _flat(step: Any, parts: str) -> Iterable[Mapping[str, Any]]:
    if not step:
        return ()
    if step["type"] == "Sequence":
        return [inner for part in step[parts] for inner in _flat(part, parts)]
    return [step]


def _factor(normalizer: Any) -> int | None:
    """Return how many times shorter the normalizer may make a text; None: no bound is known."""
    factor = 1
    for step in _flat(normalizer, "normalizers"):
        match step:
            case {"type": "Prepend" | "ByteLevel"}:
                pass
            case {"type": "NFC" | "NFD"}:
                factor *= _CANONICAL
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                if len(new.encode()) < len(old.encode()):
                    return None
            case _:
                return None
    return factor


def _value(parts: Mapping[str, msgspec.Raw], name: str) -> Any:
    return msgspec.json.decode(parts[name]) if name in parts else None


def _strips_blanks(added: Mapping[str, Any]) -> bool:
    """Return True for a special token that includes any number of blanks next to it."""
    return bool(added.get("lstrip") or added.get("rstrip"))


def _drops_text(cut: Mapping[str, Any]) -> bool:
    return cut["type"] not in _CUTS or cut.get("behavior") == "Removed"
