"""Keeps special tokens that a client spells in a chat from becoming special tokens: they stay letters.

A template writes a model's special tokens as text, and the tokenizer recognises them there. It would recognise a
client's too: the author of a quoted document could end a turn and begin another one. So the rendered text is cut within
each token that a client spelled. No piece contains it whole, and the pieces are tokenised one by one.

While the template runs, a separator marks each cut: a character that the client did not use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

_UNUSED = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))
"""Candidates for separators: noncharacters, then characters for private use."""
_MAX_TOKEN_CHARS = 64
"""Only this many characters of a token are compared. A text that merely begins like one is cut too, without effect."""


class SpecialTokenEscape:
    """Finds special tokens in the values of a request, and marks where to cut them."""

    def __init__(self, tokens: Iterable[str]) -> None:
        # A token of one character cannot be cut.
        pattern = _alternatives(sorted({token[:_MAX_TOKEN_CHARS] for token in tokens if len(token) > 1}))
        self._pattern = re.compile(pattern) if pattern else None

    def choose_separator(self, *values: Any) -> str | None:
        """Return a character that the values do not contain; empty: there is none. None: they spell no token."""
        if self._pattern is None or not any(self._pattern.search(text) for text in _texts(values)):
            return None
        used = set().union(*_texts(values))
        return next((chr(code) for code in _UNUSED if chr(code) not in used), "")

    def insert_separators(self, value: Any, separator: str) -> Any:
        """Return the value with a separator within each token that its texts spell, keys of objects included."""
        match value:
            case str():
                return self._separate(value, separator)
            case list() | tuple():
                return type(value)(self.insert_separators(item, separator) for item in value)
            case dict():
                return {
                    self._separate(key, separator): self.insert_separators(item, separator)
                    for key, item in value.items()
                }
        return value

    def _separate(self, text: str, separator: str) -> str:
        assert self._pattern is not None
        places = [0]
        while (match := self._pattern.search(text, places[-1])) is not None:
            places.append(match.start() + 1)
        return separator.join(text[begin:end] for begin, end in zip(places, (*places[1:], len(text)), strict=True))


def remove_separators(text: str, separator: str) -> tuple[str, tuple[int, ...]]:
    """Return the text without separators, and the places where they stood."""
    pieces = text.split(separator)
    return "".join(pieces), tuple(accumulate(map(len, pieces[:-1])))


def split_at_cuts(text: str, cuts: tuple[int, ...]) -> list[str]:
    """Return the pieces of a text that is cut at these places."""
    return [text[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list() | tuple():
            for item in value:
                yield from _texts(item)
        case dict():
            yield from value
            for item in value.values():
                yield from _texts(item)


def _alternatives(texts: list[str]) -> str:
    """Return a pattern that matches any of the sorted texts.

    A shared prefix stands once: a hundred tokens that differ in their last characters cost no more than one.
    """
    branches: list[str] = []
    begin = 0
    while begin < len(texts):
        first = texts[begin][:1]
        end = next((place for place in range(begin, len(texts)) if texts[place][:1] != first), len(texts))
        rest = _alternatives([text[1:] for text in texts[begin:end]]) if first else ""
        branches.append(re.escape(first) + rest)
        begin = end
    if len(branches) == 1:
        return branches[0]
    return f"(?:{'|'.join(branches)})" if branches else ""
