"""Translates Python literals to JSON, as Python reads them: strings of all kinds, numbers, tuples, sets. Pure.

Models also write JSON's `true`, `false` and `null`, and strings with line ends in them; these are accepted too.
"""

from __future__ import annotations

import json
import math
import re

MAX_DEPTH = 64
"""The deepest nesting of a literal, as that of arguments which may be resent."""
_BLANKS = re.compile(r"(?:\s|\\\n)*")
_STRING = re.compile(
    r"""(?P<prefix>[rRbBuUfF]{0,2})(?:'''(?P<a>(?:[^\\]|\\.)*?)'''|\"""(?P<b>(?:[^\\]|\\.)*?)\"""
    |'(?!'')(?P<c>(?:[^'\\]|\\.)*)'|"(?!"")(?P<d>(?:[^"\\]|\\.)*)")""",
    re.DOTALL | re.VERBOSE,
)
_NUMBER = re.compile(
    r"(?P<whole>0[xX](?:_?[0-9a-fA-F])+|0[oO](?:_?[0-7])+|0[bB](?:_?[01])+|(?:0(?:_?0)*|[1-9](?:_?\d)*)(?![\d.eE_]))"
    r"|(?:\d(?:_?\d)*\.?(?:\d(?:_?\d)*)?|\.\d(?:_?\d)*)(?:[eE][+-]?\d(?:_?\d)*)?"
)
_SIGN = re.compile(r"[+-]\s*")
_WORD = re.compile(r"[A-Za-z_]\w*")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPE = re.compile(
    r"\\(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}"
    r"|[0-7]{1,3}|.)",
    re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": "", "/": "/"}


def translate_literal(text: str) -> str | None:
    """Return the JSON of a Python literal; None: the text is none."""
    reader = _LiteralReader(text)
    try:
        value = reader.read_value(0)
    except (ValueError, RecursionError):
        return None
    return value if reader.is_at_end() else None


class _LiteralReader:
    """Reads one literal from the beginning of a text. Raises ValueError where it is not one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def is_at_end(self) -> bool:
        self._skip_blanks()
        return self._place == len(self._text)

    def read_value(self, depth: int) -> str:
        """Return the JSON of the value that comes next."""
        self._skip_blanks()
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        match self._text[self._place : self._place + 1]:
            case "[":
                return f"[{', '.join(self._read_items(']', depth)[0])}]"
            case "(":
                items, has_comma = self._read_items(")", depth)
                return items[0] if len(items) == 1 and not has_comma else f"[{', '.join(items)}]"
            case "{":
                return self._read_braces(depth)
        if (strings := self._read_strings()) is not None:
            return json.dumps(strings, ensure_ascii=False)
        if (match := _WORD.match(self._text, self._place)) is not None:
            self._place = match.end()
            if match[0] not in _WORDS:
                raise ValueError("a name is no literal")
            return _WORDS[match[0]]
        return self._read_number()

    def _skip_blanks(self) -> None:
        match = _BLANKS.match(self._text, self._place)
        assert match is not None, "the pattern also matches an empty text"
        self._place = match.end()

    def _take(self, sign: str) -> bool:
        self._skip_blanks()
        follows = self._text.startswith(sign, self._place)
        self._place += len(sign) * follows
        return follows

    def _read_items(self, close: str, depth: int) -> tuple[list[str], bool]:
        """Return the values up to a bracket, and whether a comma ends them."""
        self._place += 1
        items: list[str] = []
        has_comma = False
        while not self._take(close):
            if items and not has_comma:
                raise ValueError("a comma is missing")
            items.append(self.read_value(depth + 1))
            has_comma = self._take(",")
        return items, has_comma

    def _read_braces(self, depth: int) -> str:
        """Return the JSON of a dict, or of a set, which becomes an array."""
        self._place += 1
        members: list[str] = []
        has_comma, is_set = True, False
        while not self._take("}"):
            if not has_comma:
                raise ValueError("a comma is missing")
            key = self.read_value(depth + 1)
            is_pair = self._take(":")
            if members and is_pair == is_set:
                raise ValueError("neither a dict nor a set")
            is_set = not is_pair
            if is_pair and key[0] in "[{":
                raise ValueError("a key of JSON is a string")
            quoted = key if key.startswith('"') else json.dumps(key)
            members.append(f"{quoted}: {self.read_value(depth + 1)}" if is_pair else key)
            has_comma = self._take(",")
        return f"[{', '.join(members)}]" if is_set else f"{{{', '.join(members)}}}"

    def _read_strings(self) -> str | None:
        """Return the text of adjacent strings, which Python joins; None: there is no string."""
        pieces: list[str] = []
        while (match := _STRING.match(self._text, self._place)) is not None:
            group = next(name for name in "abcd" if match[name] is not None)
            is_raw = "r" in match["prefix"].lower()
            pieces.append(match[group] if is_raw else _ESCAPE.sub(_decode_escape, match[group]))
            self._place = match.end()
            self._skip_blanks()
        return "".join(pieces) if pieces else None

    def _read_number(self) -> str:
        sign = ""
        if (match := _SIGN.match(self._text, self._place)) is not None:
            self._place = match.end()
            sign = "-" if match[0][0] == "-" else ""
        match = _NUMBER.match(self._text, self._place)
        if match is None:
            raise ValueError("not a Python literal")
        self._place = match.end()
        digits = match[0].replace("_", "")
        if match["whole"] is not None:
            return sign + (digits if _JSON_NUMBER.fullmatch(digits) else str(int(digits, 0)))
        if _JSON_NUMBER.fullmatch(digits):
            return sign + digits
        if digits.isdecimal() or not math.isfinite(value := float(digits)):
            raise ValueError("not a number of Python or JSON")
        return sign + json.dumps(value)


def _decode_escape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 11:  # a pair of surrogates, as JSON writes them
        return chr(0x10000 + ((int(code[1:5], 16) & 0x3FF) << 10 | int(code[7:], 16) & 0x3FF))
    if code[0] in "xuU" and len(code) > 1:
        point = int(code[1:], 16)
        return chr(point) if point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF else match[0]
    if code[0] in "01234567":
        return chr(int(code, 8))
    return _ESCAPES.get(code, code if code in "\\'\"" else match[0])
