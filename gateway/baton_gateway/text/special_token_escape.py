"""Special tokens that a client spells out in a chat: they stay the letters that they are.

A template writes a model's special tokens as text, and the tokenizer finds them there. It would find a client's too: a
turn could be ended, and another one begun, by whoever wrote a document that is quoted. So the rendered text is cut
within each token that a client spelled. No piece has it whole, and the pieces are tokenised one by one.

While the template runs, a character that the client did not use stands at each cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

_UNUSED = (*range(0xFDD0, 0xFDF0), *range(0xE000, 0xF900))
"""Characters that no text should have, and then those for private use."""
_MOST_CHARS = 64
"""Of a token that are looked for: what only begins as one is cut too, and stays the same text."""


class SpelledTokens:
    """Finds these tokens in values of a request."""

    def __init__(self, tokens: Iterable[str]) -> None:
        # A single character cannot be cut.
        pattern = _any_of(sorted({token[:_MOST_CHARS] for token in tokens if len(token) > 1}))
        self._pattern = re.compile(pattern) if pattern else None

    def guard(self, *values: Any) -> str | None:
        """A character for `guarded`, which stands nowhere in the values; None: they spell no token."""
        if self._pattern is None or not any(self._pattern.search(text) for text in _texts(values)):
            return None
        used = set().union(*_texts(values))
        return next((chr(code) for code in _UNUSED if chr(code) not in used), "")

    def guarded(self, value: Any, guard: str) -> Any:
        """The value with `guard` within each token that its texts spell, keys of objects included."""
        match value:
            case str():
                return self._guarded(value, guard)
            case list() | tuple():
                return type(value)(self.guarded(each, guard) for each in value)
            case dict():
                return {self._guarded(key, guard): self.guarded(each, guard) for key, each in value.items()}
        return value

    def _guarded(self, text: str, guard: str) -> str:
        assert self._pattern is not None
        places = [0]
        while (found := self._pattern.search(text, places[-1])) is not None:
            places.append(found.start() + 1)
        return guard.join(text[begin:end] for begin, end in zip(places, (*places[1:], len(text)), strict=True))


def without_guard(text: str, guard: str) -> tuple[str, tuple[int, ...]]:
    """The text, and the places where the guard stood in it."""
    pieces = text.split(guard)
    return "".join(pieces), tuple(accumulate(map(len, pieces[:-1])))


def pieces_of(text: str, cuts: tuple[int, ...]) -> list[str]:
    """The text cut at these places."""
    return [text[begin:end] for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True)]


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list() | tuple():
            for each in value:
                yield from _texts(each)
        case dict():
            yield from value
            for each in value.values():
                yield from _texts(each)


def _any_of(texts: list[str]) -> str:
    """A pattern for one of the texts, which are sorted. What they begin with alike stands once: a hundred tokens that
    differ in their last characters cost no more than one.
    """
    ways: list[str] = []
    begin = 0
    while begin < len(texts):
        first = texts[begin][:1]
        end = next((place for place in range(begin, len(texts)) if texts[place][:1] != first), len(texts))
        rest = _any_of([text[1:] for text in texts[begin:end]]) if first else ""
        ways.append(re.escape(first) + rest)
        begin = end
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})" if ways else ""
