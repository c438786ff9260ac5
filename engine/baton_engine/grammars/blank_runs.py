"""Count consecutive blanks in JSON, outside its strings. Pure.

A grammar that counts them has a state for each count, so a matcher computes a new mask at each blank. Here the count is
a number next to the matcher, whose grammar allows an endless indentation.

A state is one byte: the number of spaces and tabs at the end, at most `MOST`, or `TEXT`, or `ESCAPE`. The effect of a
token on the state is a table of 256 bytes, and so is the effect of a byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Final

MOST: Final = 253
TEXT: Final = 254
"""Inside a string."""
ESCAPE: Final = 255
"""Inside a string, after a backslash."""


def _table(outside: Callable[[int], int], in_text: int) -> bytes:
    return bytes([*map(outside, range(MOST + 1)), in_text, TEXT])


_OTHER: Final = _table(lambda count: 0, TEXT)
_BLANK: Final = _table(lambda count: min(count + 1, MOST), TEXT)
_AFTER: Final = {
    ord(" "): _BLANK,
    ord("\t"): _BLANK,
    ord('"'): _table(lambda count: TEXT, 0),
    ord("\\"): _table(lambda count: 0, ESCAPE),
}
_NOTHING: Final = bytes(range(256))
_IS_OTHER: Final = re.compile(rb'[^"\\]*[^"\\ \t]')
"""Texts whose effect is that of their last byte: nearly all."""


def blank_runs(texts: Iterable[bytes]) -> tuple[bytes, ...]:
    """For each token's text, the state after it by the state before it. Tokens of equal effect share a table."""
    tables: dict[bytes, bytes] = {}
    return tuple(tables.setdefault(table, table) for table in map(_text_table, texts))


def _text_table(text: bytes) -> bytes:
    if _IS_OTHER.fullmatch(text):
        return _OTHER
    return reduce(bytes.translate, [_AFTER.get(byte, _OTHER) for byte in text], _NOTHING)
