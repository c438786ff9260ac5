"""Tool calls written as Python: `[f(a=1, b='x'), g()]`, at the beginning of an answer. Arguments become JSON."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import msgspec

from baton_gateway.answers.call_readers import Tools, read_call_name
from baton_gateway.answers.json_calls import MAX_NAME_CHARS, NO_ARGUMENTS
from baton_gateway.answers.python_literals import translate_literal
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

MAX_LITERAL_CHARS = 1 << 20
_LONG = {'"': 3, "'": 3, "\\": 2}
"""Characters whose meaning the next ones decide, with how many it takes: a quote may be three."""
_KEY = re.compile(r"\s*[^\W\d]\w*\s*")


def read_python_calls(feed: TextFeed, tools: Tools, single_call: bool) -> Steps[None]:
    """Read calls of offered tools with a bracket around them, or without: then they follow an opening mark."""
    has_bracket = yield from feed.expect("[")
    while (yield from _read_call(feed, tools)):
        if (has_bracket and (yield from feed.expect("]"))) or single_call:
            return
        yield from feed.skip_blanks()
        if not (yield from feed.starts_with(",")):
            return
        feed.hold()
        yield from feed.expect(",")
    if feed.is_holding:
        feed.roll_back()


def read_python_lines(feed: TextFeed, close: str, single_call: bool) -> Steps[bool]:
    """Read calls up to a closing mark, with line ends or commas between. True: all of it was calls."""
    is_first = True
    while (yield from _read_call(feed, None)):
        is_first = False
        yield from feed.skip_blanks()
        if single_call or (yield from feed.next_mark((close, "<"))) is not None or (yield from feed.is_at_end()):
            return True
        feed.hold()
        yield from feed.expect(",")
    if feed.is_holding and not is_first:
        feed.roll_back()
    return False


def read_python_object(feed: TextFeed) -> Steps[bool]:
    """Read one call that a model wrote as a dict of Python with name and arguments. True: it was one."""
    yield from feed.skip_blanks()
    if not (yield from feed.starts_with("{'")):
        return False
    raw = yield from _read_literal(feed, is_dict=True)
    translated = None if raw is None else translate_literal(raw)
    try:
        value = msgspec.json.decode(translated or "null")
    except (msgspec.DecodeError, RecursionError):
        return False
    arguments = value.get("arguments", value.get("parameters", {})) if isinstance(value, dict) else None
    if raw is None or not isinstance(arguments, dict) or not isinstance(name := value.get("name"), str) or not name:
        return False
    feed.take("", SpanKind.NAME, name)
    feed.commit()
    feed.take(raw, SpanKind.ARGUMENTS, json.dumps(arguments, ensure_ascii=False))
    return True


def _read_call(feed: TextFeed, tools: Tools | None) -> Steps[bool]:
    """Read a call. It is committed with the name of its first argument, or if it has none. `tools`: no other name is a
    call.
    """
    if not (yield from read_call_name(feed, ("(",))) or (tools is not None and feed.held_name not in tools):
        return False
    feed.take("(", SpanKind.MARK)
    count = 0
    while not (yield from feed.expect(")")):
        if count and not (yield from feed.expect(",")):
            break
        if count and (yield from feed.expect(")")):
            feed.emit("}")
            return True
        yield from feed.skip_blanks()
        key = yield from feed.read_until(("=",), MAX_NAME_CHARS)
        if key is None or not _KEY.fullmatch(key) or (yield from feed.starts_with(f"{key}==")):
            break
        feed.take(key, SpanKind.ARGUMENTS, f"{', ' if count else '{'}{json.dumps(key.strip())}: ")
        feed.take("=", SpanKind.MARK)
        feed.commit()
        literal = yield from _read_literal(feed)
        if literal is None:
            yield from feed.stream_until((), SpanKind.ARGUMENTS)
            return False
        feed.take(literal, SpanKind.ARGUMENTS, as_json(literal))
        count += 1
    else:
        feed.commit()
        feed.emit("}" if count else NO_ARGUMENTS)
        return True
    if not feed.is_holding:
        feed.emit("}" if count else NO_ARGUMENTS)
    return False


def _read_literal(feed: TextFeed, is_dict: bool = False) -> Steps[str | None]:
    """Return the text up to the comma or bracket that ends a value; those within strings and brackets do not.
    `is_dict`: the value is a dict, with its bracket.
    """
    scan = _LiteralScan(is_dict)
    while True:
        text = feed.unread
        if scan.go_on(text, feed.has_ended):
            return text[: scan.place]
        if feed.has_ended or scan.place > MAX_LITERAL_CHARS:
            return None
        yield


@dataclass(slots=True)
class _LiteralScan:
    """How far a growing text was searched for the end of a literal."""

    is_dict: bool
    """True if the literal ends with the bracket that closes its first one."""
    place: int = 0
    quote: str = ""
    """The quotes, one or three, that end the string at this place; empty: it is in none."""
    depth: int = 0

    def go_on(self, text: str, has_ended: bool) -> bool:
        """Search on. True: the literal ends at `place`; otherwise more text is needed, if more comes."""
        while self.place < len(text):
            character = text[self.place]
            if character in _LONG and len(text) < self.place + _LONG[character] and not has_ended:
                return False
            if character in "\"'" or self.quote:
                self._step_through_string(text, character)
            elif character in "([{":
                self.depth += 1
            elif character in ")]}" or character == ",":
                if self.depth == 0:
                    return True
                self.depth -= character != ","
            self.place += 1
            if self.is_dict and self.depth == 0:
                return True
        return False

    def _step_through_string(self, text: str, character: str) -> None:
        if not self.quote:
            self.quote = character * 3 if text.startswith(character * 3, self.place) else character
            self.place += len(self.quote) - 1
        elif character == "\\":
            self.place += 1
        elif text.startswith(self.quote, self.place):
            self.place += len(self.quote) - 1
            self.quote = ""


def as_json(literal: str) -> str:
    """Translate a Python literal to JSON; other text becomes a JSON string."""
    translated = translate_literal(literal)
    return json.dumps(literal.strip(), ensure_ascii=False) if translated is None else translated
