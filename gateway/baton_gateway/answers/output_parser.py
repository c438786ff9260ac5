"""Parses one choice's answer while it comes: into content, reasoning and tool calls."""

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
from baton_gateway.answers.text_gaps import TextGaps
from baton_gateway.answers.tool_use import CallBound, Tool

_ID_CHARS = string.ascii_letters + string.digits
ID_LENGTH = 9
"""Letters and digits of a call's id: what Mistral's templates accept."""


def new_call_id() -> str:
    """Return an id that no other call of a conversation has."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(ID_LENGTH))


def opens_reasoning(form: AnswerFormat, prompt: str) -> bool:
    """Return True if a prompt ends with the mark that opens reasoning, as some templates end it."""
    marks = REASONING_FORMATS.get(form.thoughts or "")
    return marks is not None and prompt.rstrip().endswith(marks.start)


class OutputParser:
    """The parser of one choice. Its result does not depend on how the text is cut."""

    def __init__(
        self,
        form: AnswerFormat,
        tools: Sequence[Tool] = (),
        is_thinking: bool = False,
        single_call: bool = False,
        call_id: Callable[[], str] = new_call_id,
        *,
        bound: CallBound = CallBound.FREE,
    ) -> None:
        """`tools`: without any, nothing is parsed as a call. `is_thinking`: the prompt opened reasoning.
        `single_call`: the answer is over after one call. `bound`: of the grammar that the answer follows.
        """
        self._feed = TextFeed()
        self._feed.is_thinking = is_thinking
        self._tokens = {token: text for text, token in form.tokens}
        self._tools = {tool.name: tool for tool in tools}
        self._single = single_call
        self._bound = bound
        usual_gap = "\n" if form.is_harmony else ""  # between messages
        self._gaps, self._thought_gaps = TextGaps(usual_gap), TextGaps(usual_gap)
        self._call_id = call_id
        self._calls = 0
        self._arguments: list[str] = []
        """The last call's arguments, in pieces."""
        self.is_over = False
        """True if the only call that is allowed is complete."""
        marks = REASONING_FORMATS.get(form.thoughts or "")
        calls = TOOL_CALL_FORMATS.get(form.calls or "") if tools else None
        self._steps: Steps[None] | None = self._read_harmony() if form.is_harmony else self._read(marks, calls)
        self._advance()

    def expect_tokens(self) -> None:
        """From now on `token_at` reports marks that are special tokens: text that only spells one is no mark."""
        self._feed.expect_tokens(self._tokens.values())

    def token_at(self, token: int, text: str, begin: int) -> None:
        """Report a token whose text ends `text`, which begins at `begin` of the answer and is pushed next."""
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
        """True if the last call's arguments are complete JSON."""
        return self.has_calls and is_json("".join(self._arguments))

    def push(self, text: str) -> tuple[AnswerPart, ...]:
        """Parse more text, and return the parts that it makes clear."""
        return self.parts(self.spans(text))

    def end(self, is_cut: bool = False) -> tuple[AnswerPart, ...]:
        """Return the parts that were still open at the end of the text. `is_cut`: the model did not end it."""
        return self.parts(self.last_spans(is_cut))

    def spans(self, text: str) -> list[TextSpan]:
        """Parse more text into spans, which together are the text, character by character."""
        self._feed.add(text)
        self._advance()
        return self._reclassify(self._feed.take_spans())

    def last_spans(self, is_cut: bool = False) -> list[TextSpan]:
        self._feed.end(is_cut)
        self._advance()
        self._feed.is_thinking = False
        return self._reclassify(self._feed.take_spans())

    def _reclassify(self, spans: list[TextSpan]) -> list[TextSpan]:
        """Make content a mark if only calls may come: it is the beginning of a mark that was cut."""
        if self._bound is not CallBound.ONLY:
            return spans
        return [replace(span, kind=SpanKind.MARK) if span.kind is SpanKind.CONTENT else span for span in spans]

    def parts(self, spans: Sequence[TextSpan]) -> tuple[AnswerPart, ...]:
        parts: list[AnswerPart] = []
        for span in spans:
            if span.kind is SpanKind.MARK:
                self._gaps.pass_mark(span)
                self._thought_gaps.pass_mark(span)
            else:
                parts.append(self._part(span))
        return tuple(merge_parts(parts)) if len(parts) > 1 else tuple(parts)

    def _part(self, span: TextSpan) -> AnswerPart:
        match span.kind:
            case SpanKind.REASONING:
                return ReasoningPart(self._thought_gaps.before(span) + span.text)
            case SpanKind.NAME:
                self._calls += 1
                self._arguments = []
                return CallPart(self._calls - 1, self._call_id(), span.text)
            case SpanKind.ARGUMENTS:
                self._arguments.append(span.text)
                return ArgumentsPart(self._calls - 1, span.text)
            case _:
                return ContentPart(self._gaps.before(span) + span.text)

    def _advance(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None

    def _read_harmony(self) -> Steps[None]:
        self.is_over = yield from Harmony(bool(self._tools)).read(self._feed, self._single)

    def _read(self, marks: ReasoningMarks | None, calls: CallFormat | None) -> Steps[None]:
        feed = self._feed
        answer_end: tuple[str, ...] = ()
        if marks is not None:
            yield from self._read_reasoning(marks)
            if marks.answer and (yield from feed.starts_with(marks.answer[0], after_blanks=True)):
                yield from feed.expect(marks.answer[0])
                yield from feed.skip_blanks()
                answer_end = marks.answer[1:]
        takes_unmarked = calls is not None and self._bound is CallBound.FREE
        if calls is not None:
            prefixes = calls.bare_prefixes if takes_unmarked else calls.bare_prefixes[: calls.is_bare]
            prefix = yield from self._first_of(prefixes)
            if prefix is not None and (yield from self._first_of(calls.openers)) is None:
                yield from feed.skip_blanks()
                yield from self._read_calls(calls, prefix)
        openers = (*calls.openers, *calls.ignored) if calls is not None else ()
        openers += tuple(calls.unmarked) if calls is not None and takes_unmarked else ()
        if self._bound is CallBound.EITHER and not feed.num_names and (yield from self._first_of(openers)) is None:
            openers = ()
        while not self.is_over:
            mark = yield from feed.stream_until((*openers, *answer_end), SpanKind.CONTENT, strip=True)
            if mark is None:
                return
            if mark in answer_end:
                yield from self._read_answer_end(mark, openers)
                continue
            assert calls is not None
            if mark in calls.ignored:
                yield from feed.expect(mark)
                yield from feed.skip_blanks()
            else:
                yield from self._read_calls(calls, mark)

    def _first_of(self, marks: Sequence[str]) -> Steps[str | None]:
        """Return the mark with which the unread text begins, perhaps after blanks."""
        for mark in marks:
            if (yield from self._feed.starts_with(mark, after_blanks=True)):
                return mark
        return None

    def _read_answer_end(self, mark: str, openers: Sequence[str]) -> Steps[None]:
        """Read the mark that closes the answer. Where text follows that is no call, it is a part of the content."""
        feed = self._feed
        feed.hold()
        yield from feed.expect(mark)
        yield from feed.skip_blanks()
        if (yield from feed.next_mark(openers)) is not None or (yield from feed.is_at_end()):
            feed.commit()
        else:
            feed.roll_back()

    def _read_reasoning(self, marks: ReasoningMarks) -> Steps[None]:
        feed = self._feed
        if not feed.is_thinking:
            if not (yield from feed.starts_with(marks.start, after_blanks=True)):
                return
            yield from feed.expect(marks.start)
            feed.is_thinking = True
        yield from feed.skip_blanks()
        if (yield from feed.stream_until((marks.end,), SpanKind.REASONING, strip=True)) is not None:
            yield from feed.expect(marks.end)
            feed.is_thinking = False
            yield from feed.skip_blanks()

    def _read_calls(self, calls: CallFormat, mark: str) -> Steps[None]:
        before = self._feed.num_names
        yield from calls.read(self._feed, mark, self._tools, self._single)
        if self._feed.num_names > before:
            self.is_over = self._single
            yield from self._feed.skip_blanks()
