"""How the answer to one request will be read, decided once from the request, the model's format and the prompt."""

from __future__ import annotations

from dataclasses import dataclass

from baton_gateway.answers.formats import HARMONY_REASONING, REASONING_FORMATS, AnswerFormat
from baton_gateway.answers.output_parser import OutputParser, opens_reasoning
from baton_gateway.answers.tool_grammars import constrained_format, is_constrained, tool_format
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import unsupported
from baton_gateway.structured_outputs.output_format import OutputFormat


@dataclass(frozen=True, slots=True)
class ParsePlan:
    """What readers of a request's choices are made with."""

    form: AnswerFormat
    tools: tuple[Tool, ...] = ()
    is_thinking: bool = False
    """The prompt opened a thought."""
    is_answering: bool = False
    """The prompt ends behind a thought, or within an answer: under a grammar no thought comes any more."""
    single: bool = False
    shape: OutputFormat | None = None
    """What calls are bound by; None: by nothing."""
    calls_only: bool = False
    """A grammar lets nothing but calls come."""

    def reader(self) -> OutputParser:
        """A reader for one choice."""
        return OutputParser(self.form, self.tools, self.is_thinking, self.single, calls_only=self.calls_only)

    @property
    def thought_marks(self) -> tuple[str, str] | None:
        """What begins and ends a thought; None: the model has none that is known."""
        if self.form.is_harmony:
            return HARMONY_REASONING.start, HARMONY_REASONING.end
        marks = REASONING_FORMATS.get(self.form.thoughts or "")
        return None if marks is None else (marks.start, marks.end)


def plan_parsing(form: AnswerFormat, tool_use: ToolUse, prompt: str, continued: str | None) -> ParsePlan:
    """How an answer to this prompt is read. `continued`: the beginning of the answer that the prompt ends with.

    Raises RefusedError for tools whose calls could not be read.
    """
    if is_constrained(tool_use):
        form = constrained_format(form, tool_use)
    elif tool_use.callable and form.calls is None:
        raise unsupported("tools", "it is not known how this model writes calls; 'tool_choice' may require one")
    marks = REASONING_FORMATS.get(form.thoughts or "")
    if continued is None:
        is_thinking = opens_reasoning(form, prompt)
        is_answering = marks is not None and prompt.rstrip().endswith(marks.end)
    else:
        is_thinking = marks is not None and continued.rfind(marks.start) > continued.rfind(marks.end)
        is_answering = not is_thinking and bool(continued.strip())
    single = bool(tool_use.callable) and not tool_use.parallel
    shape = tool_format(form, tool_use) if is_constrained(tool_use) else None
    return ParsePlan(
        form, tool_use.callable, is_thinking, is_answering, single, shape, tool_use.mode is ToolMode.REQUIRED
    )
