"""The plan for parsing the answers to one request, made once from the request, the model's format and the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from baton_gateway.answers.formats import HARMONY_REASONING, REASONING_FORMATS, AnswerFormat
from baton_gateway.answers.output_parser import OutputParser, opens_reasoning
from baton_gateway.answers.tool_grammars import (
    constrained_format,
    is_constrained,
    may_answer_instead,
    tool_format,
)
from baton_gateway.answers.tool_use import CallBound, Tool, ToolMode, ToolUse
from baton_gateway.errors import unsupported
from baton_gateway.structured_outputs.output_format import OutputFormat


@dataclass(frozen=True, slots=True)
class ParsePlan:
    """The parameters of the parsers of a request's choices."""

    form: AnswerFormat
    tools: tuple[Tool, ...] = ()
    is_thinking: bool = False
    """True if the prompt opened reasoning."""
    is_answering: bool = False
    """True if the prompt ends after reasoning, or within an answer: under a grammar no reasoning may follow."""
    single_call: bool = False
    output_format: OutputFormat | None = None
    """The format that constrains calls; None: they are free."""
    bound: CallBound = CallBound.FREE

    def make_parser(self) -> OutputParser:
        """Build the parser of one choice."""
        return OutputParser(self.form, self.tools, self.is_thinking, self.single_call, bound=self.bound)

    @property
    def reasoning_marks(self) -> tuple[str, str] | None:
        """The marks that begin and end reasoning; None: the model has no known ones."""
        if self.form.is_harmony:
            return HARMONY_REASONING.start, HARMONY_REASONING.end
        marks = REASONING_FORMATS.get(self.form.thoughts or "")
        return None if marks is None else (marks.start, marks.end)


def make_parse_plan(
    form: AnswerFormat, tool_use: ToolUse, prompt: str, continued: str | None, answer: OutputFormat | None = None
) -> ParsePlan:
    """Plan the parsing of answers to a prompt. `continued`: the beginning of an answer with which the prompt ends.
    `answer`: the format of an answer without calls.

    Raises RefusedError for tools whose calls could not be parsed.
    """
    is_either = may_answer_instead(tool_use, answer)
    if is_bound := is_either or is_constrained(tool_use):
        form = constrained_format(form, tool_use, answer)
    elif tool_use.callable and form.calls is None:
        raise unsupported("tools", "this model's format of calls is not known; 'tool_choice' may require one")
    marks = REASONING_FORMATS.get(form.thoughts or "")
    if continued is None:
        is_thinking = opens_reasoning(form, prompt)
        is_answering = marks is not None and prompt.rstrip().endswith(marks.end)
    else:
        is_thinking = marks is not None and continued.rfind(marks.start) > continued.rfind(marks.end)
        is_answering = not is_thinking and bool(continued.strip())
    single_call = bool(tool_use.callable) and not tool_use.parallel
    output_format = tool_format(form, tool_use, answer) if is_bound else None
    return ParsePlan(
        form,
        tool_use.callable,
        is_thinking,
        is_answering,
        single_call,
        output_format,
        _bound(tool_use, is_bound, is_either),
    )


def _bound(tool_use: ToolUse, is_bound: bool, is_either: bool) -> CallBound:
    if is_either:
        return CallBound.EITHER
    if tool_use.mode is ToolMode.REQUIRED:
        return CallBound.ONLY
    return CallBound.MARKED if is_bound else CallBound.FREE
