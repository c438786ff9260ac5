"""Readers of what all formats of calls have: a name, and the end of a call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from baton_gateway.answers.json_calls import MAX_NAME_CHARS
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed
from baton_gateway.answers.tool_use import Tool

NAME = re.compile(r"[^\s<>\"'{}\[\]()|｜]+")

Tools = Mapping[str, Tool]


def read_call_name(feed: TextFeed, ends: Sequence[str]) -> Steps[bool]:
    """Take a name up to one of the marks, which stays unread. False: there is no name."""
    text = yield from feed.read_until(ends, MAX_NAME_CHARS)
    name = (text or "").strip()
    if text is None or not NAME.fullmatch(name):
        return False
    begin = text.index(name)
    feed.take(text[:begin], SpanKind.MARK)
    feed.take(name, SpanKind.NAME)
    feed.take(text[begin + len(name) :], SpanKind.MARK)
    return True


def finish_call(
    feed: TextFeed, is_whole: bool, close: str, openers: Sequence[str], is_marked: bool = True
) -> Steps[None]:
    """Read up to the closing mark, or to the next call if it was forgotten. Text before it that is no part of the call
    is content, as is a text without call. `is_marked`: the call had its opening mark, so a closing one is missed.
    """
    if feed.is_holding:
        feed.roll_back()
        return
    if is_whole:
        is_closed = False
        while (yield from feed.expect(close)):
            is_closed = True
        if is_closed or not is_marked:
            return
    if (yield from feed.stream_until((close, *openers), SpanKind.CONTENT)) == close:
        feed.take(close, SpanKind.MARK)
