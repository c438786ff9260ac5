"""How models write calls of tools: one value for each way, with the reader of what stands between its marks.

A call begins at one of the marks `opens`, or, where a model has none, at the beginning of an answer (`bare`). What
turns out to be no call is content as it stands; what follows a broken call up to its closing mark is content too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton_gateway.answers.json_calls import MAX_NAME_CHARS, arguments, call_object
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed
from baton_gateway.answers.tool_use import Tool

_NAME = re.compile(r"[^\s<>\"'{}\[\]()|｜]+")

Tools = Mapping[str, Tool]


class CallFormat(Protocol):
    """One way to write calls."""

    @property
    def opens(self) -> Sequence[str]:
        """Marks at which calls begin, wherever they stand."""
        ...

    @property
    def silent(self) -> Sequence[str]:
        """Marks around calls that say nothing by themselves."""
        ...

    @property
    def bare(self) -> str:
        """With what an answer begins that may be a call without a mark; empty: nothing."""
        ...

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        """Calls from this mark on, to which the feed has come, blanks before it; only one if `single`."""
        ...


@dataclass(frozen=True, slots=True)
class JsonCalls:
    """An object of name and arguments between two marks: Hermes, Qwen."""

    opens: tuple[str, ...]
    close: str
    silent: tuple[str, ...] = ()
    bare: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = yield from call_object(feed)
        yield from finish_call(feed, is_whole, self.close)


@dataclass(frozen=True, slots=True)
class BareJsonCalls:
    """Objects without marks of their own, with something between them: Llama 3. Only the request's tools are calls."""

    opens: tuple[str, ...]
    separators: tuple[str, ...]
    silent: tuple[str, ...] = ()
    bare: str = "{"

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        feed.hold()
        if mark != self.bare:
            yield from feed.expect(mark)
        while (yield from call_object(feed, tools)) and not single:
            yield from feed.blanks()
            separator = yield from feed.next_of(self.separators)
            if separator is None:
                break
            feed.hold()
            yield from feed.expect(separator)
        if feed.is_holding:
            feed.give_back()


@dataclass(frozen=True, slots=True)
class NamedJsonCalls:
    """A name, a mark, and the arguments as JSON: DeepSeek."""

    opens: tuple[str, ...]
    before: str
    """Between the opening mark and the name."""
    between: str
    """Between name and arguments."""
    after: str
    close: str
    silent: tuple[str, ...] = ()
    bare: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        is_whole = False
        if (not self.before or (yield from feed.expect(self.before))) and (yield from call_name(feed, (self.between,))):
            feed.take(self.between, SpanKind.MARK)
            feed.commit()
            yield from feed.blanks()
            is_whole = yield from arguments(feed)
            is_whole = is_whole and (not self.after or (yield from feed.expect(self.after)))
        yield from finish_call(feed, is_whole, self.close)


@dataclass(frozen=True, slots=True)
class MistralCalls:
    """Behind its mark a list of objects, or a name with JSON behind another mark."""

    opens: tuple[str, ...] = ("[TOOL_CALLS]",)
    call_id: str = "[CALL_ID]"
    arguments: str = "[ARGS]"
    silent: tuple[str, ...] = ()
    bare: str = ""

    def read(self, feed: TextFeed, mark: str, tools: Tools, single: bool) -> Steps[None]:
        feed.hold()
        yield from feed.expect(mark)
        if (yield from feed.expect("[")):
            yield from self._list(feed, single)
        elif (yield from call_name(feed, (self.call_id, self.arguments, "{"))):
            if (yield from feed.starts(self.call_id)):
                feed.take(self.call_id, SpanKind.MARK)
                told = yield from feed.matching(_NAME)
                feed.take(told, SpanKind.MARK)
            if (yield from feed.expect(self.arguments)) or (yield from feed.starts("{")):
                feed.commit()
                yield from feed.blanks()
                yield from arguments(feed)
        if feed.is_holding:
            feed.give_back()

    def _list(self, feed: TextFeed, single: bool) -> Steps[None]:
        while (yield from call_object(feed)) and not single:
            yield from feed.blanks()
            if (yield from feed.starts("]")):
                feed.take("]", SpanKind.MARK)
                return
            if not (yield from feed.starts(",")):
                return
            feed.hold()
            yield from feed.expect(",")


def call_name(feed: TextFeed, ends: Sequence[str]) -> Steps[bool]:
    """Take a name up to one of the marks, which is left. False: there is no name."""
    before = yield from feed.until(ends, MAX_NAME_CHARS)
    name = (before or "").strip()
    if before is None or not _NAME.fullmatch(name):
        return False
    begin = before.index(name)
    feed.take(before[:begin], SpanKind.MARK)
    feed.take(name, SpanKind.NAME)
    feed.take(before[begin + len(name) :], SpanKind.MARK)
    return True


def finish_call(feed: TextFeed, is_whole: bool, close: str) -> Steps[None]:
    """The closing mark; what stands before it and is no part of the call is content. What was no call is given back."""
    if feed.is_holding:
        feed.give_back()
        return
    if is_whole and (yield from feed.expect(close)):
        return
    if (yield from feed.pass_until((close,), SpanKind.CONTENT)) is not None:
        feed.take(close, SpanKind.MARK)
