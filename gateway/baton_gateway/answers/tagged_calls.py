"""Calls whose arguments stand one by one between tags, as text: Qwen3-Coder, GLM. They are told as JSON.

An argument that its schema calls a string is told as one while it comes. Any other is told when it is complete: as it
is where it is JSON, else as a string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from baton_gateway.answers.call_formats import Tools, call_name, finish_call
from baton_gateway.answers.json_calls import MAX_NAME_CHARS, is_json
from baton_gateway.answers.text_feed import MAX_STRING_CHARS, SpanKind, Steps, TextFeed
from baton_gateway.answers.tool_use import Tool
from baton_gateway.structured_outputs.object_rules import is_string_schema

_STRING_REST = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_JSON_BEGINS = ("", "{", "[", '"')


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """A name, then key and value again and again."""

    opens: tuple[str, ...]
    before_name: str
    after_name: str
    """Empty: the name ends where a key or the closing mark begins."""
    key_open: str
    key_close: str
    value_open: str
    """Between key and value; empty: the key's own end."""
    value_closes: tuple[str, ...]
    """What ends a value; the first that comes."""
    value_begins: str
    """What models put before a value and do not mean."""
    end: str
    """After the last argument; empty: nothing but the closing mark."""
    close: str
    silent: tuple[str, ...] = ()
    bare: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = False
        ends = (self.after_name,) if self.after_name else (self.key_open, self.close, "\n")
        if (not self.before_name or (yield from feed.expect(self.before_name))) and (yield from call_name(feed, ends)):
            if self.after_name:
                feed.take(self.after_name, SpanKind.MARK)
            name = feed.held_name
            feed.commit()
            is_whole = yield from self._arguments(feed, tools.get(name))
        yield from finish_call(feed, is_whole, self.close)

    def _arguments(self, feed: TextFeed, tool: Tool | None) -> Steps[bool]:
        count = 0
        while True:
            if not (yield from feed.expect(self.key_open)):
                is_whole = not self.end or (yield from feed.expect(self.end))
                feed.tell("}" if count else "{}")
                return is_whole
            key = yield from feed.until((self.key_close,), MAX_NAME_CHARS)
            if key is None:
                feed.tell("}" if count else "{}")
                return False
            quoted = json.dumps(key.strip(), ensure_ascii=False)
            feed.take(key, SpanKind.ARGUMENTS, f"{', ' if count else '{'}{quoted}: ")
            feed.take(self.key_close, SpanKind.MARK)
            if self.value_open and not (yield from feed.expect(self.value_open)):
                feed.tell("null}")
                return False
            if not (yield from self._value(feed, _is_text(tool, key.strip()))):
                return False
            count += 1

    def _value(self, feed: TextFeed, is_string: bool) -> Steps[bool]:
        if self.value_begins and (yield from feed.starts(self.value_begins)):
            feed.take(self.value_begins, SpanKind.MARK)
        if is_string:
            feed.tell('"')
            close = yield from feed.pass_until(self.value_closes, SpanKind.ARGUMENTS, write=_escaped)
            if close is None:
                return False
            feed.tell('"')
            feed.take(close, SpanKind.MARK)
            return True
        value = yield from self._json_text(feed)
        if value is None:
            value = yield from feed.until(self.value_closes, MAX_STRING_CHARS)
        if value is None:
            yield from feed.pass_until((), SpanKind.ARGUMENTS)
            return False
        feed.take(value, SpanKind.ARGUMENTS, _as_json(value))
        close = yield from feed.next_of(self.value_closes)
        feed.take(close or "", SpanKind.MARK)
        return True

    def _json_text(self, feed: TextFeed) -> Steps[str | None]:
        """The text up to a closing mark that is not within a JSON string; None: that is no JSON."""
        place, in_string = 0, False
        while True:
            text = feed.unread
            if text.lstrip()[:1] not in _JSON_BEGINS:
                return None
            while True:
                if in_string:
                    rest = _STRING_REST.match(text, place)
                    place = rest.end() if rest else place
                    if not text.startswith('"', place):
                        break
                    place += 1
                    in_string = False
                marks = [at for mark in self.value_closes if (at := feed.find(mark, place)) >= 0]
                quote = text.find('"', place, min(marks, default=len(text)))
                if quote < 0 and marks:
                    return text[: min(marks)] if is_json(text[: min(marks)]) else None
                if quote < 0:
                    place = max(place, len(text) - max(map(len, self.value_closes)))
                    break
                place, in_string = quote + 1, True
            if feed.has_ended or len(text) > MAX_STRING_CHARS:
                return None
            yield


def _is_text(tool: Tool | None, key: str) -> bool:
    """Whether an argument is a string and nothing else."""
    properties = (tool.parameters or {}).get("properties") if tool is not None else None
    return isinstance(properties, Mapping) and is_string_schema(properties.get(key))


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _as_json(value: str) -> str:
    return value.strip() if is_json(value) else json.dumps(value, ensure_ascii=False)
