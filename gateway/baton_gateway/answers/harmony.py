"""Harmony, the format of gpt-oss: an answer is a list of messages on channels, and a call is a message to a recipient.

Written from the format's public description.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton_gateway.answers.json_calls import NO_ARGUMENTS, NULL
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ASSISTANT = "assistant"
CHANNELS = ("analysis", "commentary", "final")
ENDS = ("<|end|>", "<|call|>", "<|return|>")
TO = " to="
MAX_HEADER_CHARS = 1_024
_MAX_NULL_CHARS = 16
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?:\s*to=(?P<early>[^\s<>]+))?\s*<\|channel\|>\s*(?P<channel>analysis|commentary|final)"
    r"(?:\s*to=(?P<late>[^\s<>]+))?(?:\s*<\|constrain\|>\s*\w+|\s+(?:json|code|text))?\s*"
)
NAMESPACE = "functions."


@dataclass(frozen=True, slots=True)
class Harmony:
    """Reads a whole answer: reasoning on `analysis`, calls by their recipient, everything else as content."""

    has_calls: bool

    def read(self, feed: TextFeed, single_call: bool) -> Steps[bool]:
        """Read all messages. True: the only call that is allowed has ended."""
        is_begun = yield from feed.starts_with(TO)
        while True:
            if not is_begun and (yield from feed.stream_until((START, CHANNEL), SpanKind.CONTENT)) is None:
                return False
            is_begun = False
            header = yield from feed.read_until((MESSAGE,), MAX_HEADER_CHARS)
            match = _HEADER.fullmatch(header) if header is not None else None
            if header is None or match is None or (match["early"] and match["late"]):  # a message has one recipient
                mark = yield from feed.next_mark((START, CHANNEL, TO))
                feed.take(mark or "", SpanKind.CONTENT)
                continue
            is_call = self._take_header(feed, header, match)
            kind = SpanKind.CONTENT
            if is_call:
                kind = SpanKind.ARGUMENTS
            elif match["channel"] == "analysis" and not (match["early"] or match["late"]):
                kind = SpanKind.REASONING
            feed.is_thinking = kind is SpanKind.REASONING
            if is_call:
                yield from self._read_no_arguments(feed)
            end = yield from feed.stream_until((*ENDS, START), kind)
            feed.is_thinking = False
            if end in ENDS:
                feed.take(end, SpanKind.MARK)
            if is_call and end is not None and single_call:
                return True

    def _read_no_arguments(self, feed: TextFeed) -> Steps[None]:
        """Take null or nothing, with blanks around it, as an empty object."""
        yield from feed.skip_blanks()
        ends = (*ENDS, START)
        if (yield from feed.next_mark(ends)) is not None:
            feed.emit(NO_ARGUMENTS)
        elif (yield from feed.is_at_end()):
            feed.emit("" if feed.is_cut else NO_ARGUMENTS)
        elif (yield from feed.starts_with(NULL)):
            value = yield from feed.read_until(ends, _MAX_NULL_CHARS)
            if value is None and feed.has_ended and not feed.is_cut:
                value = feed.unread
            if value is not None and value.strip() == NULL:
                feed.take(value, SpanKind.ARGUMENTS, NO_ARGUMENTS)

    def _take_header(self, feed: TextFeed, header: str, match: re.Match[str]) -> bool:
        """Take the header. True: it begins a call."""
        group = "early" if match["early"] else "late"
        name = match[group]
        if name is None:
            feed.take(header, SpanKind.MARK)
        elif not self.has_calls:
            feed.take(header + MESSAGE, SpanKind.CONTENT)
            return False
        else:
            begin, end = match.span(group)
            prefix = len(NAMESPACE) if name.startswith(NAMESPACE) and name != NAMESPACE else 0
            feed.take(header[: begin + prefix], SpanKind.MARK)
            feed.take(header[begin + prefix : end], SpanKind.NAME)
            feed.take(header[end:], SpanKind.MARK)
        feed.take(MESSAGE, SpanKind.MARK)
        return name is not None
