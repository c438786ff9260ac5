"""Regular expressions of clients: bounded before anything is built from them, and translated for the compiler. Pure.

JSON Schema has the dialect of ECMA-262, the compiler that of Rust's `regex`. What both share passes unchanged. What
differs is rewritten or refused.
"""

from __future__ import annotations

import re

MAX_PATTERN_CHARS = 16_384
MAX_STATES = 20_000
"""The most states of an expression with its counted repeats expanded: some 10 ms for the first mask."""

_COUNTED = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|p\{[\w=]{1,64}\}|P\{[\w=]{1,64}\}|.)", re.DOTALL)
_LETTERS = frozenset("dDwWsStnrfvpPxu")
_ASCII = {"d": "[0-9]", "D": "[^0-9]", "w": "[0-9A-Za-z_]", "W": "[^0-9A-Za-z_]"}
"""Classes of ECMA-262. Rust's match digits and letters of every script."""
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_]\w{0,63}>))?")
_WRITABLE = frozenset("\b\t\n\f\r")
"""Control characters with a short escape in JSON; answers can contain no others."""


class PatternError(Exception):
    """An expression that cannot be used; the message says why."""


class LookAroundError(PatternError):
    """An expression with look-around, or another group that the compiler does not have."""


def translate_pattern(pattern: str, *, expands_classes: bool = False) -> str:
    """Return the expression in the compiler's dialect. Raises PatternError if it is too large or has no equivalent.

    `expands_classes`: classes such as `\\d` are expanded. Within a schema the compiler knows that they are ECMA-262's.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"the expression has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed")
    reader = _PatternReader(pattern, expands_classes)
    states = reader.read_alternatives(0)
    if reader.place < len(pattern):
        raise PatternError("a ')' closes nothing")
    if states > MAX_STATES:
        raise PatternError(f"the expression has {states} states with its repeats; at most {MAX_STATES} are allowed")
    return "".join(reader.parts)


class _PatternReader:
    """Reads an expression once, counts its states, and writes it in the compiler's dialect."""

    def __init__(self, pattern: str, expands_classes: bool) -> None:
        self.place = 0
        self.parts: list[str] = []
        self._pattern = pattern
        self._classes = _ASCII if expands_classes else {}

    def read_alternatives(self, depth: int) -> int:
        """Read up to the end, or to the parenthesis that closes this group, and return the number of states."""
        if depth > 64:
            raise PatternError("groups are nested more than 64 deep")
        total = 0
        while (char := self._peek()) not in ("", ")"):
            states = self._atom(char, depth)
            total += states * self._repeats()
        return total

    def _atom(self, char: str, depth: int) -> int:
        match char:
            case "(":
                self._group(depth)
                states = self.read_alternatives(depth + 1)
                if self._peek() != ")":
                    raise PatternError("a '(' is not closed")
                self._take(1)
                return states
            case "[":
                self._class()
            case "\\":
                self._escape(in_class=False)
            case _ if ord(char) < 0x20 and char not in _WRITABLE:
                raise _unwritable(ord(char))
            case _:
                self._take(1)
        return 1

    def _group(self, depth: int) -> None:
        opened = _GROUP.match(self._pattern, self.place)
        assert opened is not None
        if self._pattern.startswith("?", opened.end()):
            raise LookAroundError("look-around, flags and other '(?…)' but '(?:…)' are not available")
        self.parts.append("(?:" if opened.group() == "(" else opened.group())
        self.place = opened.end()

    def _class(self) -> None:
        self._take(1)
        if self._peek() == "^":
            self._take(1)
        if self._peek() == "]":
            raise PatternError("an empty '[]' or '[^]' is not available")
        while (char := self._peek()) != "]":
            if not char:
                raise PatternError("a '[' is not closed")
            if char == "\\":
                self._escape(in_class=True)
            elif char in "[&~":
                self.parts.append(f"\\{char}")
                self.place += 1
            elif self._pattern.startswith("--", self.place):
                raise PatternError("'--' in a class is not available; write '\\-'")
            else:
                self._take(1)
        self._take(1)

    def _escape(self, in_class: bool) -> None:
        match = _ESCAPE.match(self._pattern, self.place)
        if match is None:
            raise PatternError("the expression ends in a '\\'")
        text = match.group()
        letter = text[1]
        if letter.isalnum() and (
            letter not in _LETTERS or not letter.isascii() or (letter in "xupP" and len(text) < 4)
        ):
            raise PatternError(f"the escape '\\{letter}' is not available")
        if letter == "u" and 0xD800 <= int(text[2:], 16) < 0xE000:
            raise PatternError(f"the escape '{text}' is half a character; write the character itself")
        if not in_class and letter in "xu" and (code := int(text[2:], 16)) < 0x20 and chr(code) not in _WRITABLE:
            raise _unwritable(code)
        if not in_class and letter == "v":
            raise _unwritable(0x0B)
        self.parts.append(self._classes.get(letter, text))
        self.place = match.end()

    def _repeats(self) -> int:
        """Read quantifiers, and return how often the atom before them occurs when expanded; 1 for `*`, `+` and `?`."""
        times = 1
        while char := self._peek():
            if char in "*+?":
                self._take(1)
            elif char == "{":
                counted = _COUNTED.match(self._pattern, self.place)
                if counted is None:
                    raise PatternError("'{' must be a repeat such as '{2,5}'; write '\\{' for the character")
                times *= max(1, int(counted[3] or counted[1]))
                self._take(len(counted[0]))
            else:
                break
        return times

    def _peek(self) -> str:
        return self._pattern[self.place : self.place + 1]

    def _take(self, chars: int) -> None:
        self.parts.append(self._pattern[self.place : self.place + chars])
        self.place += chars


def _unwritable(code: int) -> PatternError:
    return PatternError(f"the control character U+{code:04X} cannot be written in an answer")


def find_unwritable(text: str) -> str | None:
    """Return why an answer cannot contain `text`, or None."""
    if text.isprintable():
        return None
    for char in text:
        if char < " " and char not in _WRITABLE:
            return f"the control character U+{ord(char):04X} cannot be written in an answer"
        if "\ud800" <= char <= "\udfff":
            return "half of a surrogate pair cannot be written in an answer"
    return None
