"""Reads one choice's answer while it comes: what is content, what a thought, what calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import replace

from baton_gateway.answers.call_formats import CallFormat
from baton_gateway.answers.formats import REASONING_FORMATS, TOOL_CALL_FORMATS, AnswerFormat, ReasoningMarks
from baton_gateway.answers.harmony import Harmony
from baton_gateway.answers.json_calls import is_json
from baton_gateway.answers.output_parts import (
    AnswerPart,
    ArgumentsPart,
    CallPart,
    ContentPart,
    ReasoningPart,
    merge_parts,
)
from baton_gateway.answers.text_feed import SpanKind, Steps, TextFeed, TextSpan
from baton_gateway.answers.tool_use import Tool

_ID_CHARS = string.ascii_letters + string.digits
ID_LENGTH = 9
"""Of a call's id, letters and digits: what Mistral's templates want back."""


def new_call_id() -> str:
    """An id that no other call of a conversation has."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(ID_LENGTH))


def opens_reasoning(form: AnswerFormat, prompt: str) -> bool:
    """Whether a prompt ends where a thought has begun, as some templates begin it."""
    marks = REASONING_FORMATS.get(form.thoughts or "")
    return marks is not None and prompt.rstrip().endswith(marks.start)


class OutputParser:
    """The reader of one choice. Nothing depends on how its text is cut."""

    def __init__(
        self,
        form: AnswerFormat,
        tools: Sequence[Tool] = (),
        is_thinking: bool = False,
        single: bool = False,
        call_id: Callable[[], str] = new_call_id,
        *,
        calls_only: bool = False,
    ) -> None:
        """`tools`: what may be called; without any nothing is read as a call. `is_thinking`: the prompt opened a
        thought. `single`: the answer is over after one call. `calls_only`: a grammar lets nothing but calls come, so
        what is none is the beginning of one that was cut.
        """
        self._feed = TextFeed()
        self._feed.is_thinking = is_thinking
        self._tokens = {token: text for text, token in form.tokens}
        self._tools = {tool.name: tool for tool in tools}
        self._single = single
        self._calls_alone = calls_only
        self._call_id = call_id
        self._calls = 0
        self._arguments: list[str] = []
        """Of the last call, in pieces."""
        self.is_over = False
        """The one call that there may be is complete."""
        marks = REASONING_FORMATS.get(form.thoughts or "")
        calls = TOOL_CALL_FORMATS.get(form.calls or "") if tools else None
        self._steps: Steps[None] | None = self._harmony() if form.is_harmony else self._answer(marks, calls)
        self._go_on()

    def expect_tokens(self) -> None:
        """Marks that are special tokens are told by `token_at`: what only spells one is no mark."""
        self._feed.expect_tokens(self._tokens.values())

    def token_at(self, token: int, text: str, begin: int) -> None:
        """A token that stands for the end of this text, which begins at a place of the answer and is read next."""
        mark = self._tokens.get(token)
        if mark is not None and text.endswith(mark):
            self._feed.token_at(begin + len(text) - len(mark))

    @property
    def reads_calls(self) -> bool:
        return bool(self._tools)

    @property
    def is_thinking(self) -> bool:
        return self._feed.is_thinking

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    @property
    def has_whole_call(self) -> bool:
        """Whether the last call's arguments came to their end, as JSON."""
        return self.has_calls and is_json("".join(self._arguments))

    def push(self, text: str) -> tuple[AnswerPart, ...]:
        """What became clear with this text."""
        return self.parts(self.spans(text))

    def end(self) -> tuple[AnswerPart, ...]:
        """What was still open, at the end of the text."""
        return self.parts(self.last_spans())

    def spans(self, text: str) -> list[TextSpan]:
        """The same as spans: together they are the text, character by character."""
        self._feed.add(text)
        self._go_on()
        return self._meant(self._feed.spans())

    def last_spans(self) -> list[TextSpan]:
        self._feed.end()
        self._go_on()
        self._feed.is_thinking = False
        return self._meant(self._feed.spans())

    def _meant(self, spans: list[TextSpan]) -> list[TextSpan]:
        """Where calls come alone, no text is content: a mark that was cut is a mark."""
        if not self._calls_alone:
            return spans
        return [replace(each, kind=SpanKind.MARK) if each.kind is SpanKind.CONTENT else each for each in spans]

    def parts(self, spans: Sequence[TextSpan]) -> tuple[AnswerPart, ...]:
        return tuple(merge_parts([self._part(span) for span in spans if span.kind is not SpanKind.MARK]))

    def _part(self, span: TextSpan) -> AnswerPart:
        match span.kind:
            case SpanKind.REASONING:
                return ReasoningPart(span.told)
            case SpanKind.NAME:
                self._calls += 1
                self._arguments = []
                return CallPart(self._calls - 1, self._call_id(), span.told)
            case SpanKind.ARGUMENTS:
                self._arguments.append(span.told)
                return ArgumentsPart(self._calls - 1, span.told)
            case _:
                return ContentPart(span.told)

    def _go_on(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None

    def _harmony(self) -> Steps[None]:
        self.is_over = yield from Harmony(bool(self._tools)).read(self._feed, self._single)

    def _answer(self, marks: ReasoningMarks | None, calls: CallFormat | None) -> Steps[None]:
        feed = self._feed
        if marks is not None:
            yield from self._thought(marks)
        if calls is not None and calls.bare and (yield from feed.starts(calls.bare, after_blanks=True)):
            yield from feed.blanks()
            yield from self._read_calls(calls, calls.bare)
        opens = (*calls.opens, *calls.silent) if calls is not None else ()
        while not self.is_over:
            mark = yield from feed.pass_until(opens, SpanKind.CONTENT, strip=True)
            if mark is None:
                return
            assert calls is not None
            if mark in calls.silent:
                yield from feed.expect(mark)
                yield from feed.blanks()
            else:
                yield from self._read_calls(calls, mark)

    def _thought(self, marks: ReasoningMarks) -> Steps[None]:
        feed = self._feed
        if not feed.is_thinking:
            if not (yield from feed.starts(marks.start, after_blanks=True)):
                return
            yield from feed.expect(marks.start)
            feed.is_thinking = True
        yield from feed.blanks()
        if (yield from feed.pass_until((marks.end,), SpanKind.REASONING, strip=True)) is not None:
            yield from feed.expect(marks.end)
            feed.is_thinking = False
            yield from feed.blanks()

    def _read_calls(self, calls: CallFormat, mark: str) -> Steps[None]:
        before = self._feed.num_names
        yield from calls.read(self._feed, mark, self._tools, self._single)
        if self._feed.num_names > before:
            self.is_over = self._single
            yield from self._feed.blanks()
