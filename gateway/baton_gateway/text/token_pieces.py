"""The bytes of single token ids, for the two families of tokenizers whose decoders work token by token.

Byte-level (GPT-2, Llama 3, Qwen): every character of a token stands for one byte. SentencePiece (Llama 2, Mistral): `▁`
is a space, `<0xNN>` a byte, and the first space of a text is dropped. Other decoders have no table: see `detokenizer`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from tokenizers import Tokenizer

_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecoderKind(enum.Enum):
    BYTE_LEVEL = enum.auto()
    SENTENCEPIECE = enum.auto()
    OTHER = enum.auto()


class LeadingSpace(enum.Enum):
    """How spaces at the beginning of a text are handled."""

    KEEP = enum.auto()
    DROP_ONE = enum.auto()
    DROP_IN_FIRST_TOKEN = enum.auto()


@dataclass(frozen=True, slots=True)
class Piece:
    """The contribution of one token as bytes and, except for SentencePiece byte tokens (`is_byte`), as text."""

    data: bytes
    text: str = ""
    is_byte: bool = False
    is_skipped: bool = False


@dataclass(slots=True)
class PieceTable:
    """Pieces of one tokenizer, filled as ids are seen."""

    text_of: Callable[[int], str | None]
    """Returns a token as the vocabulary writes it; None for an unknown id."""
    kind: DecoderKind
    leading_space: LeadingSpace
    byte_fallback: bool
    hidden_ids: frozenset[int]
    """Special tokens that are not shown."""
    pieces: dict[int, Piece] = field(default_factory=dict)

    def piece(self, token: int) -> Piece:
        piece = self.pieces.get(token)
        if piece is None:
            piece = self.pieces[token] = self._make_piece(token)
        return piece

    def _make_piece(self, token: int) -> Piece:
        text = self.text_of(token)
        if text is None or token in self.hidden_ids:
            return Piece(b"", is_skipped=True)
        if self.kind is DecoderKind.BYTE_LEVEL:
            return Piece(byte_level_bytes(text))
        if self.byte_fallback and (byte := _BYTE.fullmatch(text)):
            return Piece(bytes([int(byte[1], 16)]), is_byte=True)
        text = text.replace(_SPACE, " ")
        return Piece(text.encode(), text)


def special_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the texts of special tokens by id."""
    added = tokenizer.get_added_tokens_decoder()
    return {token: entry.content for token, entry in added.items() if entry.special}


def decoder_of(tokenizer: Tokenizer) -> bytes:
    """Return the decoder's settings as JSON; empty for a tokenizer without a decoder."""
    # Serialising the whole tokenizer would hold the interpreter for a second if the vocabulary is large.
    decoder = tokenizer.decoder
    state: bytes = b"" if decoder is None else decoder.__getstate__()
    return state


def piece_table(decoder: bytes, text_of: Callable[[int], str | None], hidden_ids: frozenset[int]) -> PieceTable | None:
    """Build the table for a tokenizer with this decoder; None if the decoder does not work token by token."""
    steps = _flatten(msgspec.json.decode(decoder)) if decoder else []
    kind = _kind(steps)
    if kind is DecoderKind.OTHER:
        return None
    return PieceTable(
        text_of=text_of,
        kind=kind,
        leading_space=_leading_space(steps) if kind is DecoderKind.SENTENCEPIECE else LeadingSpace.KEEP,
        byte_fallback=any(step["type"] == "ByteFallback" for step in steps),
        hidden_ids=hidden_ids,
    )


def byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; an added token with characters outside the alphabet stands for itself."""
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def _flatten(decoder: Any) -> list[dict[str, Any]]:
    if not isinstance(decoder, dict):
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder.get("decoders", []) for step in _flatten(part)]
    return [decoder]


def _kind(steps: list[dict[str, Any]]) -> DecoderKind:
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return DecoderKind.BYTE_LEVEL
    if types and all(map(_is_sentencepiece, steps)) and any(name in ("Replace", "Metaspace") for name in types):
        return DecoderKind.SENTENCEPIECE
    return DecoderKind.OTHER


def _is_sentencepiece(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "Replace":
            return step.get("pattern") == {"String": _SPACE} and step.get("content") == " "
        case "Strip":
            return step.get("content") == " " and step.get("start") in (0, 1) and step.get("stop") == 0
        case "Metaspace":
            return step.get("replacement") == _SPACE
        case other:
            return other in ("ByteFallback", "Fuse")


def _leading_space(steps: list[dict[str, Any]]) -> LeadingSpace:
    for step in steps:
        if step["type"] == "Metaspace" and step.get("prepend_scheme") != "never":
            return LeadingSpace.DROP_IN_FIRST_TOKEN
        if step["type"] == "Strip" and step.get("start") == 1:
            return LeadingSpace.DROP_ONE
    return LeadingSpace.KEEP


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's map of printable characters to bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(256 + rank): byte for rank, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()
