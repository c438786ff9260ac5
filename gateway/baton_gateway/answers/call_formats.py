"""The syntaxes in which models write tool calls: one class for each, which reads what stands between its marks.

A call begins at one of the marks in `openers`. If a format has none, it begins an answer with `bare_prefix`. Text that
turns out not to be a call is content, unchanged; so is what follows a broken call up to its closing mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton_gateway.answers.json_calls import MAX_NAME_CHARS, read_arguments, read_call_object
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed
from baton_gateway.answers.tool_use import Tool

_NAME = re.compile(r"[^\s<>\"'{}\[\]()|｜]+")

Tools = Mapping[str, Tool]


class CallFormat(Protocol):
    """One syntax of tool calls."""

    @property
    def openers(self) -> Sequence[str]:
        """Marks at which calls begin, anywhere in the text."""
        ...

    @property
    def ignored(self) -> Sequence[str]:
        """Marks around calls that have no meaning of their own."""
        ...

    @property
    def bare_prefix(self) -> str:
        """The beginning of an answer that may be a call without a mark; empty: there is none."""
        ...

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        """Read calls from `mark`, where the feed stands, perhaps after blanks; only one call if `single_call`."""
        ...


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """JSON objects of name and arguments, each between two marks: Hermes, Qwen."""

    openers: tuple[str, ...]
    close: str
    ignored: tuple[str, ...] = ()
    bare_prefix: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = yield from read_call_object(feed)
        yield from finish_call(feed, is_whole, self.close)


@dataclass(frozen=True, slots=True)
class BareJsonCalls:
    """JSON objects without marks, with separators between: Llama 3. Only names of the request's tools are calls."""

    openers: tuple[str, ...]
    separators: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    bare_prefix: str = "{"

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        if mark != self.bare_prefix:
            yield from feed.expect(mark)
        while (yield from read_call_object(feed, tools)) and not single_call:
            yield from feed.skip_blanks()
            separator = yield from feed.next_mark(self.separators)
            if separator is None:
                break
            feed.hold()
            yield from feed.expect(separator)
        if feed.is_holding:
            feed.roll_back()


@dataclass(frozen=True, slots=True)
class NamedJsonCalls:
    """A name, a mark, and the arguments as JSON: DeepSeek."""

    openers: tuple[str, ...]
    before: str
    """The text between the opening mark and the name."""
    between: str
    """The text between name and arguments."""
    after: str
    close: str
    ignored: tuple[str, ...] = ()
    bare_prefix: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = False
        if (not self.before or (yield from feed.expect(self.before))) and (
            yield from read_call_name(feed, (self.between,))
        ):
            feed.take(self.between, SpanKind.MARK)
            feed.commit()
            yield from feed.skip_blanks()
            is_whole = yield from read_arguments(feed)
            is_whole = is_whole and (not self.after or (yield from feed.expect(self.after)))
        yield from finish_call(feed, is_whole, self.close)


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """After the mark a list of JSON objects, or a name and, after another mark, its arguments: Mistral."""

    openers: tuple[str, ...] = ("[TOOL_CALLS]",)
    call_id: str = "[CALL_ID]"
    arguments: str = "[ARGS]"
    ignored: tuple[str, ...] = ()
    bare_prefix: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single_call: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        if (yield from feed.expect("[")):
            yield from self._read_list(feed, single_call)
        elif (yield from read_call_name(feed, (self.call_id, self.arguments, "{"))):
            if (yield from feed.starts_with(self.call_id)):
                feed.take(self.call_id, SpanKind.MARK)
                call_id = yield from feed.read_matching(_NAME)
                feed.take(call_id, SpanKind.MARK)
            if (yield from feed.expect(self.arguments)) or (yield from feed.starts_with("{")):
                feed.commit()
                yield from feed.skip_blanks()
                yield from read_arguments(feed)
        if feed.is_holding:
            feed.roll_back()

    def _read_list(self, feed: TextFeed, single_call: bool) -> Steps[None]:
        while (yield from read_call_object(feed)) and not single_call:
            yield from feed.skip_blanks()
            if (yield from feed.starts_with("]")):
                feed.take("]", SpanKind.MARK)
                return
            if not (yield from feed.starts_with(",")):
                return
            feed.hold()
            yield from feed.expect(",")


def read_call_name(feed: TextFeed, ends: Sequence[str]) -> Steps[bool]:
    """Take a name up to one of the marks, which stays unread. False: there is no name."""
    text = yield from feed.read_until(ends, MAX_NAME_CHARS)
    name = (text or "").strip()
    if text is None or not _NAME.fullmatch(name):
        return False
    begin = text.index(name)
    feed.take(text[:begin], SpanKind.MARK)
    feed.take(name, SpanKind.NAME)
    feed.take(text[begin + len(name) :], SpanKind.MARK)
    return True


def finish_call(feed: TextFeed, is_whole: bool, close: str) -> Steps[None]:
    """Read up to the closing mark. Text before it that is no part of the call is content, as is a text without call."""
    if feed.is_holding:
        feed.roll_back()
        return
    if is_whole and (yield from feed.expect(close)):
        return
    if (yield from feed.stream_until((close,), SpanKind.CONTENT)) is not None:
        feed.take(close, SpanKind.MARK)
