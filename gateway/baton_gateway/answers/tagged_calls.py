"""Tool calls with their arguments one by one between tags, as text, which become JSON: Qwen3-Coder, GLM and others.

An argument whose schema says string is streamed as one. Any other is emitted when it is complete, as the JSON that its
schema makes of it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from baton_gateway.answers.argument_values import ArgumentSchema, find_argument
from baton_gateway.answers.call_readers import Tools, finish_call, read_call_name
from baton_gateway.answers.json_calls import MAX_NAME_CHARS, NO_ARGUMENTS, NULL, is_json
from baton_gateway.answers.text_feed import MAX_BLANKS, MAX_STRING_CHARS, SpanKind, Steps, TextFeed
from baton_gateway.answers.tool_use import Tool
from baton_gateway.structured_outputs.text_schema import TextSchema

_STRING_REST = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_JSON_BEGINS = ("", "{", "[", '"')


@dataclass(frozen=True, slots=True)
class TaggedCalls:
    """A name, then any number of keys and values."""

    openers: tuple[str, ...]
    before_name: str
    after_name: str
    """The text after the name; empty: the name ends where a key or the closing mark begins."""
    key_open: str
    key_close: str
    value_open: str
    """The text between key and value; empty: there is none besides `key_close`."""
    value_closes: tuple[str, ...]
    """Texts that end a value; the first one that comes counts."""
    value_begins: str
    """Text before a value that is not a part of it."""
    end: str
    """Text after the last argument; empty: there is only the closing mark."""
    close: str
    unmarked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    bare_prefixes: tuple[str, ...] = ()
    is_bare: bool = False

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        is_marked = mark not in self.unmarked
        if is_marked:
            yield from feed.expect(mark)
        is_whole = yield from self._read_call(feed, tools, is_marked)
        while is_whole and not single_call and self.end and (yield from self._is_next_call(feed)):
            feed.hold()
            is_whole = yield from self._read_call(feed, tools, is_marked)
        yield from finish_call(feed, is_whole, self.close, (*self.openers, *self.unmarked), is_marked)

    def _is_next_call(self, feed: TextFeed) -> Steps[bool]:
        """Take blanks, and return True if another call follows before the closing mark."""
        yield from feed.skip_blanks()
        return (yield from feed.starts_with(self.before_name))

    def _read_call(self, feed: TextFeed, tools: Tools, is_marked: bool) -> Steps[bool]:
        """Read a name and its arguments. True: it was a call to its end."""
        ends = (self.after_name,) if self.after_name else (self.key_open, self.close, "\n")
        is_named = (
            (not self.before_name or (yield from feed.expect(self.before_name)))
            and (yield from read_call_name(feed, ends))
            and (is_marked or feed.held_name in tools)
        )
        if not is_named:
            return False
        if self.after_name:
            feed.take(self.after_name, SpanKind.MARK)
        name = feed.held_name
        feed.commit()
        return (yield from self._read_arguments(feed, tools.get(name)))

    def _read_arguments(self, feed: TextFeed, tool: Tool | None) -> Steps[bool]:
        count = 0
        while True:
            if not (yield from feed.expect(self.key_open)):
                is_whole = not self.end or (yield from feed.expect(self.end))
                feed.emit("}" if count else NO_ARGUMENTS)
                return is_whole
            key = yield from feed.read_until((self.key_close,), MAX_NAME_CHARS)
            if key is None or not key.strip() or "\n" in key.strip():
                feed.emit("}" if count else NO_ARGUMENTS)
                return False
            quoted = json.dumps(key.strip(), ensure_ascii=False)
            feed.take(key, SpanKind.ARGUMENTS, f"{', ' if count else '{'}{quoted}: ")
            feed.take(self.key_close, SpanKind.MARK)
            if self.value_open:  # models forget it
                yield from feed.expect(self.value_open)
            schema = find_argument(tool.parameters if tool is not None else None, key.strip())
            if not (yield from self._read_value(feed, schema)):
                return False
            count += 1

    def _read_value(self, feed: TextFeed, schema: ArgumentSchema) -> Steps[bool]:
        if self.value_begins and (yield from feed.starts_with(self.value_begins)):
            feed.take(self.value_begins, SpanKind.MARK)
        text = schema.as_text()
        if text is not None:
            return (yield from self._read_text(feed, text))
        value = yield from self._read_json(feed)
        if value is None:
            value = yield from self._read_raw(feed)
        if value is None:
            yield from feed.stream_until((), SpanKind.ARGUMENTS)
            return False
        feed.take(value, SpanKind.ARGUMENTS, schema.to_json(value))
        close = yield from feed.next_mark(self.value_closes)
        feed.take(close or "", SpanKind.MARK)
        return True

    def _read_text(self, feed: TextFeed, text: TextSchema) -> Steps[bool]:
        """Stream a string; where null is allowed, the word alone is null."""
        nulls = [NULL + close for close in self.value_closes] if text.is_nullable else []
        if (yield from feed.next_mark(nulls)) is not None:
            feed.take(NULL, SpanKind.ARGUMENTS)
            close = yield from feed.next_mark(self.value_closes)
        else:
            feed.emit('"')
            close = yield from self._stream_raw(feed)
            if close is None:
                return False
            feed.emit('"')
        if close in self.value_closes:
            feed.take(close or "", SpanKind.MARK)
        return True

    @property
    def _ends(self) -> tuple[str, ...]:
        """Texts that end a value whose own end was forgotten."""
        end = self.end or self.close
        return f"\n{end}", end

    def _stream_raw(self, feed: TextFeed) -> Steps[str | None]:
        """Stream a string up to the text that ends it, which stays unread; None: the answer ends first."""
        closes = (*self.value_closes, *self._ends)
        while True:
            close = yield from feed.stream_until(closes, SpanKind.ARGUMENTS, write=_escape)
            if close is None or (yield from self._is_end(feed, 0, close)):
                return close
            feed.take(close, SpanKind.ARGUMENTS, _escape(close))

    def _read_raw(self, feed: TextFeed) -> Steps[str | None]:
        """Return the text before the one that ends a value; None: there is no end, or it is too long."""
        place = searched = 0
        closes = (*self.value_closes, *self._ends)
        while True:
            matches = [(at, -len(mark), mark) for mark in closes if (at := feed.find(mark, searched)) >= 0]
            if matches:
                place, _, close = min(matches)
                if (yield from self._is_end(feed, place, close)):
                    return feed.unread[:place]
                searched = place + len(close)
                continue
            if feed.has_ended or len(feed.unread) > MAX_STRING_CHARS:
                return None
            searched = max(searched, len(feed.unread) - max(map(len, closes)))
            yield

    def _is_end(self, feed: TextFeed, place: int, close: str) -> Steps[bool]:
        """Return True if a text at a place of the unread text ends a value: another argument or the end of the call
        follows. Otherwise the value contains this text, as files about tools do.
        """
        followers = (self.close, *self.openers, *self.unmarked)
        if close in self.value_closes:
            followers = (self.key_open, self.end or self.close, *followers)
        while True:
            rest = feed.unread[place + len(close) :]
            text = rest.lstrip()
            if text.startswith(followers) or (not text and (feed.has_ended or len(rest) > MAX_BLANKS)):
                return True
            if not any(follower.startswith(text) for follower in followers):
                return False
            if feed.has_ended:
                return True
            yield

    def _read_json(self, feed: TextFeed) -> Steps[str | None]:
        """Return the text up to a closing mark outside of JSON strings; None: it is not JSON."""
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


def _escape(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
