"""How many blanks stand in a row in JSON, outside of its texts. Pure.

A grammar that counts them has a state for each count, so that a matcher computes a new mask at each blank. Here it is
a number beside the matcher, whose grammar lets an indentation go on without end.

A state is one byte: how many spaces and tabs were last, at most `MOST`, or `TEXT`, or `ESCAPE`. What a token does to
it is a table of 256 bytes, and so is what a byte does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Final

MOST: Final = 253
TEXT: Final = 254
"""Within quotation marks."""
ESCAPE: Final = 255
"""Behind a backslash there."""


def _table(outside: Callable[[int], int], in_text: int) -> bytes:
    return bytes([*map(outside, range(MOST + 1)), in_text, TEXT])


_OTHER: Final = _table(lambda count: 0, TEXT)
_BLANK: Final = _table(lambda count: min(count + 1, MOST), TEXT)
_BEHIND: Final = {
    ord(" "): _BLANK,
    ord("\t"): _BLANK,
    ord('"'): _table(lambda count: TEXT, 0),
    ord("\\"): _table(lambda count: 0, ESCAPE),
}
_NOTHING: Final = bytes(range(256))
_IS_OTHER: Final = re.compile(rb'[^"\\]*[^"\\ \t]')
"""Texts that do what their last byte does: nearly all."""


def blank_runs(texts: Iterable[bytes]) -> tuple[bytes, ...]:
    """For each token's text the state behind it, by the state before it. Tokens that do the same share a table."""
    tables: dict[bytes, bytes] = {}
    return tuple(tables.setdefault(table, table) for table in map(_of_text, texts))


def _of_text(text: bytes) -> bytes:
    if _IS_OTHER.fullmatch(text):
        return _OTHER
    return reduce(bytes.translate, [_BEHIND.get(byte, _OTHER) for byte in text], _NOTHING)
