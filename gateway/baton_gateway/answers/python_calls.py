"""Tool calls written as Python: `[f(a=1, b='x'), g()]`, at the beginning of an answer. Arguments become JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from baton_gateway.answers.call_formats import Tools, read_call_name
from baton_gateway.answers.json_calls import MAX_NAME_CHARS
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

MAX_LITERAL_CHARS = 1 << 20
_KEY = re.compile(r"\s*[^\W\d]\w*\s*")
_TOKEN = re.compile(
    r"""(?P<blank>\s+)|(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_]\w*)"""
    r"""|(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<sign>[\[\]{}(),:])""",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_SIGNS = {"(": "[", ")": "]"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}


@dataclass(frozen=True, slots=True)
class PythonCalls:
    """A list of calls with named arguments. Only names of the request's tools are calls."""

    openers: tuple[str, ...]
    ignored: tuple[str, ...]
    bare_prefix: str = "["

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        if mark == self.bare_prefix or (yield from feed.expect(self.bare_prefix)):
            while (yield from self._read_call(feed, tools)):
                if (yield from feed.expect("]")) or single_call:
                    return
                if not (yield from feed.starts_with(",")):
                    return
                feed.hold()
                yield from feed.expect(",")
        if feed.is_holding:
            feed.roll_back()

    def _read_call(self, feed: TextFeed, tools: Tools) -> Steps[bool]:
        if not (yield from read_call_name(feed, ("(",))) or feed.held_name not in tools:
            return False
        feed.take("(", SpanKind.MARK)
        feed.commit()
        count = 0
        while not (yield from feed.expect(")")):
            if count and not (yield from feed.expect(",")):
                break
            if count and (yield from feed.expect(")")):
                feed.emit("}")
                return True
            yield from feed.skip_blanks()
            key = yield from feed.read_until(("=",), MAX_NAME_CHARS)
            if key is None or not _KEY.fullmatch(key):
                break
            feed.take(key, SpanKind.ARGUMENTS, f"{', ' if count else '{'}{json.dumps(key.strip())}: ")
            feed.take("=", SpanKind.MARK)
            literal = yield from _read_literal(feed)
            if literal is None:
                yield from feed.stream_until((), SpanKind.ARGUMENTS)
                return False
            feed.take(literal, SpanKind.ARGUMENTS, as_json(literal))
            count += 1
        else:
            feed.emit("}" if count else "{}")
            return True
        feed.emit("}" if count else "{}")
        return False


def _read_literal(feed: TextFeed) -> Steps[str | None]:
    """Return the text up to the comma or bracket that ends a value; those within strings and brackets do not."""
    place, quote, depth = 0, "", 0
    while True:
        text = feed.unread
        while place < len(text):
            character = text[place]
            if quote:
                if character == "\\":
                    if place + 1 == len(text):
                        break
                    place += 1
                elif character == quote:
                    quote = ""
            elif character in "\"'":
                quote = character
            elif character in "([{":
                depth += 1
            elif character in ")]}" or character == ",":
                if depth == 0:
                    return text[:place]
                depth -= character != ","
            place += 1
        if feed.has_ended or place > MAX_LITERAL_CHARS:
            return None
        yield


def as_json(literal: str) -> str:
    """Translate a Python literal to JSON; other text becomes a JSON string."""
    try:
        text = "".join(_translate(literal))
        msgspec.json.decode(text)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return json.dumps(literal.strip(), ensure_ascii=False)
    return text


def _translate(literal: str) -> Iterator[str]:
    place = 0
    comma = ""
    while place < len(literal):
        match = _TOKEN.match(literal, place)
        if match is None:
            raise ValueError("not a Python literal")
        place = match.end()
        kind, text = match.lastgroup, match[0]
        if kind == "blank":
            continue
        if not (comma and text in (")", "]", "}")):
            yield comma
        comma = ""
        match kind:
            case "text":
                yield json.dumps(_ESCAPE.sub(_escape, text[1:-1]), ensure_ascii=False)
            case "word":
                yield _WORDS.get(text, text)
            case "number":
                yield _number(text)
            case _ if text == ",":
                comma = ", "
            case _:
                yield ": " if text == ":" else _SIGNS.get(text, text)
    yield comma


def _number(text: str) -> str:
    text = text.removeprefix("+")
    return json.dumps(float(text)) if not _JSON_NUMBER.fullmatch(text) else text


_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


def _escape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "xuU" and len(code) > 1:
        point = int(code[1:], 16)
        return chr(point) if point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF else match[0]
    return _ESCAPES.get(code, code if code in "\\'\"" else match[0])
