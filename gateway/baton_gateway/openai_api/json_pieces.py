"""JSON that is written in pieces: what is large is encoded while it grows, and never copied into one text.

A value may hold `EncodedJson` anywhere. `json_pieces` encodes the rest around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

PIECE_BYTES: Final = 64 << 10
"""About 10 µs of copying."""
JsonBytes = bytes | bytearray
_encode = msgspec.json.Encoder().encode
_MARK: Final = b"\0"
"""Stands where encoded JSON goes. No JSON text has this byte: encoders escape it."""
_MARKED: Final = msgspec.Raw(_MARK)


class EncodedJson:
    """A JSON value that is encoded already, in pieces."""

    __slots__ = ("_pieces",)

    def __init__(self, *pieces: JsonBytes) -> None:
        self._pieces: Sequence[JsonBytes] = pieces

    def pieces(self) -> Sequence[JsonBytes]:
        return self._pieces


class GrowingText(EncodedJson):
    """A JSON string that grows."""

    __slots__ = ("_escaped",)

    def __init__(self, text: str = "") -> None:
        self._escaped = bytearray()
        self.add(text)

    def add(self, text: str) -> int:
        """Append a text. Returns the bytes that it takes here."""
        escaped = _encode(text)
        self._escaped += escaped[1:-1]
        return len(escaped) - 2

    def pieces(self) -> Sequence[JsonBytes]:
        return b'"', self._escaped, b'"'

    def __bool__(self) -> bool:
        return bool(self._escaped)

    def text(self) -> str:
        """The string itself."""
        text: str = msgspec.json.decode(b"".join(self.pieces()))
        return text


def json_pieces(value: Any) -> list[JsonBytes]:
    """The JSON of a value, whose `EncodedJson` parts are left as they are."""
    parts: list[EncodedJson] = []

    def mark(part: Any) -> msgspec.Raw:
        if not isinstance(part, EncodedJson):
            raise TypeError(f"{type(part).__name__} is no JSON value")
        parts.append(part)
        return _MARKED

    first, *others = msgspec.json.Encoder(enc_hook=mark).encode(value).split(_MARK)
    pieces: list[JsonBytes] = [first]
    for part, after in zip(parts, others, strict=True):
        pieces += part.pieces()
        pieces.append(after)
    return pieces


def even_pieces(pieces: Iterable[JsonBytes], size: int = PIECE_BYTES) -> Iterator[bytes]:
    """The same bytes in pieces of `size`, the last one shorter."""
    waiting = bytearray()
    for piece in pieces:
        if len(waiting) + len(piece) < size:
            waiting += piece
            continue
        begin = size - len(waiting)
        yield bytes(waiting) + piece[:begin]
        while begin + size <= len(piece):
            yield bytes(piece[begin : begin + size])
            begin += size
        waiting = bytearray(piece[begin:])
    if waiting:
        yield bytes(waiting)
