"""Calls written as Python: `[f(a=1, b='x'), g()]`, at the beginning of an answer. Their arguments are told as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from baton_gateway.answers.call_formats import Tools, call_name
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
    """A list of calls with named arguments. Only the request's tools are calls."""

    opens: tuple[str, ...]
    silent: tuple[str, ...]
    bare: str = "["

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        if mark == self.bare or (yield from feed.expect(self.bare)):
            while (yield from self._call(feed, tools)):
                if (yield from feed.expect("]")) or single:
                    return
                if not (yield from feed.starts(",")):
                    return
                feed.hold()
                yield from feed.expect(",")
        if feed.is_holding:
            feed.give_back()

    def _call(self, feed: TextFeed, tools: Tools) -> Steps[bool]:
        if not (yield from call_name(feed, ("(",))) or feed.held_name not in tools:
            return False
        feed.take("(", SpanKind.MARK)
        feed.commit()
        count = 0
        while not (yield from feed.expect(")")):
            if count and not (yield from feed.expect(",")):
                break
            if count and (yield from feed.expect(")")):
                feed.tell("}")
                return True
            yield from feed.blanks()
            key = yield from feed.until(("=",), MAX_NAME_CHARS)
            if key is None or not _KEY.fullmatch(key):
                break
            feed.take(key, SpanKind.ARGUMENTS, f"{', ' if count else '{'}{json.dumps(key.strip())}: ")
            feed.take("=", SpanKind.MARK)
            literal = yield from _literal(feed)
            if literal is None:
                yield from feed.pass_until((), SpanKind.ARGUMENTS)
                return False
            feed.take(literal, SpanKind.ARGUMENTS, as_json(literal))
            count += 1
        else:
            feed.tell("}" if count else "{}")
            return True
        feed.tell("}" if count else "{}")
        return False


def _literal(feed: TextFeed) -> Steps[str | None]:
    """The text up to the comma or bracket that ends a value, strings and brackets within it respected."""
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
    """A Python literal as JSON; what is none as a string."""
    try:
        text = "".join(_translated(literal))
        msgspec.json.decode(text)
    except (ValueError, msgspec.DecodeError, RecursionError):
        return json.dumps(literal.strip(), ensure_ascii=False)
    return text


def _translated(literal: str) -> Iterator[str]:
    place = 0
    comma = ""
    while place < len(literal):
        found = _TOKEN.match(literal, place)
        if found is None:
            raise ValueError("no Python literal")
        place = found.end()
        kind, text = found.lastgroup, found[0]
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


def _escape(found: re.Match[str]) -> str:
    code = found[1]
    if code[0] in "xuU" and len(code) > 1:
        point = int(code[1:], 16)
        return chr(point) if point <= 0x10FFFF and not 0xD800 <= point <= 0xDFFF else found[0]
    return _ESCAPES.get(code, code if code in "\\'\"" else found[0])
