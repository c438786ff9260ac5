"""JSON in pieces: large values are encoded while they grow, and never copied into one text.

A value may contain `EncodedJson` anywhere. `json_pieces` encodes the rest around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

PIECE_BYTES: Final = 64 << 10
"""The size of a piece: about 10 µs of copying."""
JsonBytes = bytes | bytearray
_encode = msgspec.json.Encoder().encode
_MARK: Final = b"\0"
"""The placeholder of encoded JSON. No JSON text contains this byte: encoders escape it."""
_MARKED: Final = msgspec.Raw(_MARK)


class EncodedJson:
    """A JSON value that is already encoded, in pieces."""

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
        """Append a text, and return the bytes that it takes."""
        escaped = _encode(text)
        self._escaped += escaped[1:-1]
        return len(escaped) - 2

    def pieces(self) -> Sequence[JsonBytes]:
        return b'"', self._escaped, b'"'

    def __bool__(self) -> bool:
        return bool(self._escaped)

    def text(self) -> str:
        """Return the string itself."""
        text: str = msgspec.json.decode(b"".join(self.pieces()))
        return text


def json_pieces(value: Any) -> list[JsonBytes]:
    """Encode a value in pieces; its `EncodedJson` parts are used unchanged."""
    parts: list[EncodedJson] = []

    def mark(part: Any) -> msgspec.Raw:
        if not isinstance(part, EncodedJson):
            raise TypeError(f"{type(part).__name__} is not a JSON value")
        parts.append(part)
        return _MARKED

    first, *others = msgspec.json.Encoder(enc_hook=mark).encode(value).split(_MARK)
    pieces: list[JsonBytes] = [first]
    for part, after in zip(parts, others, strict=True):
        pieces += part.pieces()
        pieces.append(after)
    return pieces


def even_pieces(pieces: Iterable[JsonBytes], size: int = PIECE_BYTES) -> Iterator[bytes]:
    """Yield the same bytes in pieces of `size`; the last one may be shorter."""
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
