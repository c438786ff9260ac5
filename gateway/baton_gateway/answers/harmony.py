"""Harmony, the format of gpt-oss: an answer is messages, each on a channel, a call is a message to a recipient.

Written from the format's public description; nothing is fetched.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
ASSISTANT = "assistant"
CHANNELS = ("analysis", "commentary", "final")
ENDS = ("<|end|>", "<|call|>", "<|return|>")
TO = " to="
MAX_HEADER_CHARS = 1_024
_HEADER = re.compile(
    r"(?:<\|start\|>assistant)?(?:\s*to=(?P<early>[^\s<>]+))?\s*<\|channel\|>\s*(?P<channel>analysis|commentary|final)"
    r"(?:\s*to=(?P<late>[^\s<>]+))?(?:\s*<\|constrain\|>\s*\w+|\s+(?:json|code|text))?\s*"
)
NAMESPACE = "functions."


@dataclass(frozen=True, slots=True)
class Harmony:
    """The whole answer in one format: thoughts on `analysis`, calls by recipient, content on all else."""

    has_calls: bool

    def read(self, feed: TextFeed, single: bool) -> Steps[bool]:
        """All messages. Whether it ended with the one call that there may be."""
        is_begun = yield from feed.starts(TO)
        while True:
            if not is_begun and (yield from feed.pass_until((START, CHANNEL), SpanKind.CONTENT)) is None:
                return False
            is_begun = False
            header = yield from feed.until((MESSAGE,), MAX_HEADER_CHARS)
            found = _HEADER.fullmatch(header) if header is not None else None
            if header is None or found is None or (found["early"] and found["late"]):  # nobody writes to two at once
                mark = yield from feed.next_of((START, CHANNEL, TO))
                feed.take(mark or "", SpanKind.CONTENT)
                continue
            is_call = self._header(feed, header, found)
            kind = SpanKind.CONTENT
            if is_call:
                kind = SpanKind.ARGUMENTS
            elif found["channel"] == "analysis" and not (found["early"] or found["late"]):
                kind = SpanKind.REASONING
            feed.is_thinking = kind is SpanKind.REASONING
            if is_call and (yield from feed.next_of((*ENDS, START))) is not None:
                feed.tell("{}")
            end = yield from feed.pass_until((*ENDS, START), kind)
            feed.is_thinking = False
            if end in ENDS:
                feed.take(end, SpanKind.MARK)
            if is_call and end is not None and single:
                return True

    def _header(self, feed: TextFeed, header: str, found: re.Match[str]) -> bool:
        """Take the header; whether it begins a call."""
        group = "early" if found["early"] else "late"
        name = found[group]
        if name is None:
            feed.take(header, SpanKind.MARK)
        elif not self.has_calls:
            feed.take(header + MESSAGE, SpanKind.CONTENT)
            return False
        else:
            begin, end = found.span(group)
            own = len(NAMESPACE) if name.startswith(NAMESPACE) and name != NAMESPACE else 0
            feed.take(header[: begin + own], SpanKind.MARK)
            feed.take(header[begin + own : end], SpanKind.NAME)
            feed.take(header[end:], SpanKind.MARK)
        feed.take(MESSAGE, SpanKind.MARK)
        return name is not None
