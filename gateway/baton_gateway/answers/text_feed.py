"""Text that comes in pieces, for readers written as if all of it were there.

A reader is a generator: it yields where it must see more text before it can decide. So nothing that it decides depends
on how the text was cut. Whatever it takes leaves as a span, and the spans in the order of their places are the text
again, character by character.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A reader's part: yields for more text, returns its finding."""

MAX_STRING_CHARS = 1 << 20
_STRING_REST = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_BLANKS = re.compile(r"\s*")
MAX_BLANKS = 4_096
"""That are held back before what may be a mark: a model that writes nothing else is not held back for ever."""


class SpanKind(enum.Enum):
    CONTENT = enum.auto()
    REASONING = enum.auto()
    NAME = enum.auto()
    ARGUMENTS = enum.auto()
    MARK = enum.auto()  # the format's own: says where something begins or ends


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A stretch of the model's text, and what is told of it."""

    kind: SpanKind
    at: int
    """Its first character's place in the whole text."""
    raw: str
    """As the model wrote it; empty for what only the told form needs, such as a closing brace."""
    told: str


def partial_match_length(text: str, marks: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins one of the marks, without being all of it."""
    longest = 0
    for mark in marks:
        for length in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:length]):
                longest = length
                break
    return longest


def _stripped(text: str) -> str:
    """Without the blanks at its end, at most `MAX_BLANKS` of them."""
    return text[: max(len(text.rstrip()), len(text) - MAX_BLANKS)]


class TextFeed:
    """Unread text, and the spans of what was read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._ended = False
        self._spans: list[TextSpan] = []
        self._held: list[TextSpan] | None = None
        self.is_thinking = False
        """Whether what comes now belongs to a thought."""
        self.num_names = 0
        """Calls told so far."""
        self._tokens: re.Pattern[str] | None = None
        """Parts of marks that are special tokens; None: it is not known which come as such."""
        self._token_places: set[int] = set()
        self._tokens_within: dict[str, tuple[int, ...]] = {}
        """Of marks, where within them special tokens begin."""

    def add(self, text: str) -> None:
        """More has come."""
        self._text += text

    def expect_tokens(self, texts: Collection[str]) -> None:
        """From now on these special tokens are told: a mark that is spelled instead, in letters, is none."""
        longest_first = sorted(texts, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first))) if texts else None

    def token_at(self, place: int) -> None:
        """A special token stands at this place of the whole text, before it is added."""
        self._token_places.add(place)

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True

    def spans(self) -> list[TextSpan]:
        """What was read since the last time."""
        spans, self._spans = self._spans, []
        return spans

    @property
    def unread(self) -> str:
        """What has come and was not taken."""
        return self._text

    @property
    def has_ended(self) -> bool:
        return self._ended

    # Looking ----------------------------------------------------------------------------------------------------------

    def find(self, mark: str, begin: int = 0, end: int | None = None) -> int:
        """The mark's first place in the unread text, from `begin` up to `end`; -1: there is none."""
        place = self._text.find(mark, begin, end)
        while place >= 0 and not self._is_meant(mark, place):
            place = self._text.find(mark, place + 1, end)
        return place

    def _is_meant(self, mark: str, place: int) -> bool:
        """Whether the mark, which stands at a place of the unread text, is written with the tokens that it has."""
        if self._tokens is None:
            return True
        if (within := self._tokens_within.get(mark)) is None:
            within = self._tokens_within[mark] = tuple(found.start() for found in self._tokens.finditer(mark))
        return all(self._at + place + offset in self._token_places for offset in within)

    def starts(self, mark: str, after_blanks: bool = False) -> Steps[bool]:
        """Whether the text goes on with the mark."""
        while True:
            text = self._text.lstrip() if after_blanks else self._text
            if text.startswith(mark):
                return self._is_meant(mark, len(self._text) - len(text))
            if self._ended or not mark.startswith(text):
                return False
            yield

    def next_of(self, marks: Sequence[str]) -> Steps[str | None]:
        """The first of the marks with which the text goes on."""
        for mark in marks:
            if (yield from self.starts(mark)):
                return mark
        return None

    def character(self) -> Steps[str]:
        """The next character; empty at the end."""
        while not self._text and not self._ended:
            yield
        return self._text[:1]

    def string(self, most: int = MAX_STRING_CHARS) -> Steps[str | None]:
        """The JSON string with which the text goes on, its quotes included; None: there is none of so many
        characters.
        """
        if not (yield from self.starts('"')):
            return None
        place = 1
        while True:
            place = self._rest_of_string(place)
            if place > most:
                return None
            if place < len(self._text) and self._text[place] == '"':
                return self._text[: place + 1]
            if self._ended:
                return None
            yield

    def _rest_of_string(self, place: int) -> int:
        found = _STRING_REST.match(self._text, place)
        assert found is not None, "it matches nothing too"
        return found.end()

    def until(self, marks: Sequence[str], most: int) -> Steps[str | None]:
        """The text before the first of the marks; None: none comes within so many characters."""
        longest = max(map(len, marks))
        seen, looked = most + longest, 0
        while True:
            places = [place for mark in marks if (place := self.find(mark, max(0, looked - longest), seen)) >= 0]
            if places and min(places) <= most:
                return self._text[: min(places)]
            if self._ended or len(self._text) >= seen:
                return None
            looked = len(self._text)
            yield

    def matching(self, pattern: re.Pattern[str]) -> Steps[str]:
        """The longest text at this place that matches; `pattern` is a repeated class of characters."""
        while True:
            found = pattern.match(self._text)
            text = found[0] if found else ""
            if len(text) < len(self._text) or self._ended:
                return text
            yield

    # Taking -----------------------------------------------------------------------------------------------------------

    def take(self, text: str, kind: SpanKind, told: str | None = None) -> None:
        """Take this text, which the feed begins with."""
        assert self._text.startswith(text)
        if text or told:
            span = TextSpan(kind, self._at, text, text if told is None else told)
            (self._spans if self._held is None else self._held).append(span)
        self._text = self._text[len(text) :]
        self._at += len(text)

    def tell(self, told: str) -> None:
        """Tell of a call's arguments what stands nowhere in the text."""
        self.take("", SpanKind.ARGUMENTS, told)

    def blanks(self) -> Steps[None]:
        """Take blanks, as a part of the mark beside them."""
        yield from self.pass_matching(_BLANKS, SpanKind.MARK)

    def pass_matching(self, pattern: re.Pattern[str], kind: SpanKind) -> Steps[bool]:
        """Take what matches, as it comes; `pattern` is a repeated class of characters. Whether there was anything."""
        is_any = False
        while True:
            found = pattern.match(self._text)
            if found is not None and found[0]:
                is_any = True
                self.take(found[0], kind)
            if self._text or self._ended:
                return is_any
            yield

    def expect(self, mark: str) -> Steps[bool]:
        """Take blanks and the mark, if they come."""
        yield from self.blanks()
        is_there = yield from self.starts(mark)
        if is_there:
            self.take(mark, SpanKind.MARK)
        return is_there

    def pass_until(
        self, marks: Sequence[str], kind: SpanKind, strip: bool = False, write: Callable[[str], str] = str
    ) -> Steps[str | None]:
        """Tell text as it comes, up to the first of the marks, which is left, with the blanks before it if `strip`.

        `write`: how the text is told. None: the text ended.
        """
        while True:
            found = [(place, -len(mark), mark) for mark in marks if (place := self.find(mark)) >= 0]
            if found:
                place, _, mark = min(found)
                before = self._text[:place]
                self._pass(_stripped(before) if strip else before, kind, write)
                return mark
            if self._ended:
                self._pass(self._text, kind, write)
                return None
            free = self._text[: len(self._text) - partial_match_length(self._text, marks)]
            self._pass(_stripped(free) if strip and marks else free, kind, write)
            yield

    def _pass(self, text: str, kind: SpanKind, write: Callable[[str], str]) -> None:
        if text:
            self.take(text, kind, write(text))

    # Holding ----------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """From here on nothing is told until it is clear what it is."""
        self._held = []

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    @property
    def held_name(self) -> str:
        """The name that is held."""
        return next((span.told for span in self._held or () if span.kind is SpanKind.NAME), "")

    def commit(self) -> None:
        """It is what it looked like: tell it, a call's name first."""
        if self._held is not None:
            self.num_names += any(span.kind is SpanKind.NAME for span in self._held)
            self._spans += sorted(self._held, key=lambda span: span.kind is not SpanKind.NAME)
            self._held = None

    def give_back(self) -> None:
        """It is not: all of it is content as it stands."""
        held, self._held = self._held or [], None
        self._spans += [
            replace(span, kind=SpanKind.CONTENT, told=span.raw) for span in sorted(held, key=lambda span: span.at)
        ]
