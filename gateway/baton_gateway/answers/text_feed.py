"""A feed of text that comes in pieces, for readers written as if all of it were there.

A reader is a generator: it yields where it needs more text to decide. So its decisions do not depend on how the text
was cut. Everything that it takes becomes a span. The spans in the order of their places are the text again, character
by character.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A step of a reader: yields for more text, and returns what it read."""

MAX_STRING_CHARS = 1 << 20
_STRING_REST = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_BLANKS = re.compile(r"\s*")
MAX_BLANKS = 4_096
"""The most blanks that are held back before a possible mark: a model may write nothing else."""


class SpanKind(enum.Enum):
    """The meaning of a span of text."""

    CONTENT = enum.auto()
    REASONING = enum.auto()
    NAME = enum.auto()
    ARGUMENTS = enum.auto()
    MARK = enum.auto()  # the format's own syntax


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A span of the model's text, and the text that it contributes to the answer."""

    kind: SpanKind
    at: int
    """The place of its first character in the whole text."""
    raw: str
    """The text that the model wrote; empty for additions such as a closing brace."""
    text: str
    """The text that the answer gets."""


def partial_match_length(text: str, marks: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of one of the marks."""
    longest = 0
    for mark in marks:
        begin = text.find(mark[0], max(0, len(text) - len(mark) + 1))
        while begin >= 0 and len(text) - begin > longest:
            if mark.startswith(text[begin:]):
                longest = len(text) - begin
            begin = text.find(mark[0], begin + 1)
    return longest


def _strip_end(text: str) -> str:
    """Strip trailing blanks, at most `MAX_BLANKS` of them."""
    return text[: max(len(text.rstrip()), len(text) - MAX_BLANKS)]


class TextFeed:
    """Unread text, and the spans of text that was read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self.is_cut = False
        """True if the text ended before the model ended it."""
        self._spans: list[TextSpan] = []
        self._held: list[TextSpan] | None = None
        self.is_thinking = False
        """True if the text that comes now is reasoning."""
        self.num_names = 0
        """Calls so far."""
        self._tokens: re.Pattern[str] | None = None
        """Matches parts of marks that are special tokens; None: tokens are not reported."""
        self._token_places: set[int] = set()
        self._tokens_within: dict[str, tuple[int, ...]] = {}
        """The places within each mark where special tokens begin."""

    def add(self, text: str) -> None:
        """Append text that has come."""
        self._text += text

    def expect_tokens(self, texts: Collection[str]) -> None:
        """From now on these special tokens are reported: a mark that is only spelled in letters is none."""
        longest_first = sorted(texts, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first))) if texts else None

    def token_at(self, place: int) -> None:
        """Report a special token at this place of the whole text, before its text is added."""
        self._token_places.add(place)

    def end(self, is_cut: bool = False) -> None:
        """Mark the end of the text."""
        self._ended, self.is_cut = True, is_cut

    def take_spans(self) -> list[TextSpan]:
        """Return the spans that were read since the last call."""
        spans, self._spans = self._spans, []
        return spans

    @property
    def unread(self) -> str:
        """Text that has come and was not taken."""
        return self._text

    @property
    def has_ended(self) -> bool:
        return self._ended

    # Reading ----------------------------------------------------------------------------------------------------------

    def find(self, mark: str, begin: int = 0, end: int | None = None) -> int:
        """Return the mark's first place in the unread text, from `begin` up to `end`; -1: there is none."""
        place = self._text.find(mark, begin, end)
        while place >= 0 and not self._is_real(mark, place):
            place = self._text.find(mark, place + 1, end)
        return place

    def _is_real(self, mark: str, place: int) -> bool:
        """Return True if the mark at a place of the unread text consists of its special tokens, not of letters."""
        if self._tokens is None:
            return True
        if (within := self._tokens_within.get(mark)) is None:
            within = self._tokens_within[mark] = tuple(match.start() for match in self._tokens.finditer(mark))
        return all(self._at + place + offset in self._token_places for offset in within)

    def starts_with(self, mark: str, after_blanks: bool = False) -> Steps[bool]:
        """Return True if the unread text begins with the mark."""
        while True:
            text = self._text.lstrip() if after_blanks else self._text
            if text.startswith(mark):
                return self._is_real(mark, len(self._text) - len(text))
            if self._ended or not mark.startswith(text):
                return False
            yield

    def is_at_end(self) -> Steps[bool]:
        """Return True if no more text comes and none is unread."""
        return not (yield from self.peek())

    def next_mark(self, marks: Sequence[str]) -> Steps[str | None]:
        """Return the first of the marks with which the unread text begins."""
        for mark in marks:
            if (yield from self.starts_with(mark)):
                return mark
        return None

    def peek(self) -> Steps[str]:
        """Return the next character without taking it; empty at the end."""
        while not self._text and not self._ended:
            yield
        return self._text[:1]

    def read_string(self, max_chars: int = MAX_STRING_CHARS) -> Steps[str | None]:
        """Return the JSON string with which the unread text begins, with its quotes; None: there is none this short."""
        if not (yield from self.starts_with('"')):
            return None
        place = 1
        while True:
            place = self._end_of_string(place)
            if place > max_chars:
                return None
            if place < len(self._text) and self._text[place] == '"':
                return self._text[: place + 1]
            if self._ended:
                return None
            yield

    def _end_of_string(self, place: int) -> int:
        match = _STRING_REST.match(self._text, place)
        assert match is not None, "the pattern also matches an empty text"
        return match.end()

    def read_until(self, marks: Sequence[str], max_chars: int) -> Steps[str | None]:
        """Return the text before the first of the marks; None: none comes within `max_chars`."""
        longest = max(map(len, marks))
        limit, searched = max_chars + longest, 0
        while True:
            places = [place for mark in marks if (place := self.find(mark, max(0, searched - longest), limit)) >= 0]
            if places and min(places) <= max_chars:
                return self._text[: min(places)]
            if self._ended or len(self._text) >= limit:
                return None
            searched = len(self._text)
            yield

    def read_matching(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Return the longest matching beginning of the unread text; `pattern` is a repeated class of characters."""
        while True:
            match = pattern.match(self._text)
            text = match[0] if match else ""
            if len(text) < len(self._text) or self._ended:
                return text
            yield

    # Taking -----------------------------------------------------------------------------------------------------------

    def take(self, raw: str, kind: SpanKind, text: str | None = None) -> None:
        """Take the beginning of the unread text as a span; `text`: what the answer gets, if not `raw`."""
        assert self._text.startswith(raw)
        if raw or text:
            span = TextSpan(kind, self._at, raw, raw if text is None else text)
            (self._spans if self._held is None else self._held).append(span)
        self._text = self._text[len(raw) :]
        self._at += len(raw)

    def emit(self, text: str) -> None:
        """Add text to a call's arguments that the model did not write."""
        self.take("", SpanKind.ARGUMENTS, text)

    def skip_blanks(self) -> Steps[None]:
        """Take blanks as a part of the mark next to them."""
        yield from self.stream_matching(_BLANKS, SpanKind.MARK)

    def stream_matching(self, pattern: re.Pattern[str], kind: SpanKind) -> Steps[bool]:
        """Take matching text as it comes; `pattern` is a repeated class of characters. False: there was none."""
        is_any = False
        while True:
            match = pattern.match(self._text)
            if match is not None and match[0]:
                is_any = True
                self.take(match[0], kind)
            if self._text or self._ended:
                return is_any
            yield

    def expect(self, mark: str) -> Steps[bool]:
        """Take blanks, and the mark if it follows. False: it does not."""
        yield from self.skip_blanks()
        follows = yield from self.starts_with(mark)
        if follows:
            self.take(mark, SpanKind.MARK)
        return follows

    def stream_until(
        self, marks: Sequence[str], kind: SpanKind, strip: bool = False, write: Callable[[str], str] = str
    ) -> Steps[str | None]:
        """Take text as it comes, up to the first of the marks, and return that mark; None: the text ended.

        The mark stays unread, and the blanks before it if `strip`. `write`: converts the text for the answer.
        """
        while True:
            text = self._text
            matches = [(place, -len(mark), mark) for mark in marks if mark in text and (place := self.find(mark)) >= 0]
            if matches:
                place, _, mark = min(matches)
                before = self._text[:place]
                self._take_written(_strip_end(before) if strip else before, kind, write)
                return mark
            if self._ended:
                self._take_written(self._text, kind, write)
                return None
            free = self._text[: len(self._text) - partial_match_length(self._text, marks)]
            self._take_written(_strip_end(free) if strip and marks else free, kind, write)
            yield

    def _take_written(self, text: str, kind: SpanKind, write: Callable[[str], str]) -> None:
        if text:
            self.take(text, kind, write(text))

    # Holding ----------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Hold spans back from here on, until it is clear what they are."""
        self._held = []

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    @property
    def held_name(self) -> str:
        """The name among the held spans."""
        return next((span.text for span in self._held or () if span.kind is SpanKind.NAME), "")

    def commit(self) -> None:
        """Release the held spans as they are, a call's name first."""
        if self._held is not None:
            self.num_names += any(span.kind is SpanKind.NAME for span in self._held)
            self._spans += sorted(self._held, key=lambda span: span.kind is not SpanKind.NAME)
            self._held = None

    def roll_back(self) -> None:
        """Release the held spans as content, unchanged."""
        held, self._held = self._held or [], None
        self._spans += [
            replace(span, kind=SpanKind.CONTENT, text=span.raw) for span in sorted(held, key=lambda span: span.at)
        ]
