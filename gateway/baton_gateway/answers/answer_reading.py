"""How the answer to one request will be read, decided once from the request, the model's format and the prompt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from baton_gateway.answers.answer_reader import AnswerReader, opens_thought
from baton_gateway.answers.formats import THOUGHTS, AnswerFormat
from baton_gateway.answers.harmony import CHANNEL, ENDS, MESSAGE
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import unsupported

BOUND_FORM = "hermes"
"""How a call is written that a grammar forces, where the model's own way is not known or cannot be forced."""
BOUND = ("hermes", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31")
"""Formats whose calls a grammar forces as they are."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What readers of a request's choices are made with."""

    form: AnswerFormat
    tools: tuple[Tool, ...] = ()
    is_thinking: bool = False
    """The prompt opened a thought."""
    single: bool = False

    def reader(self) -> AnswerReader:
        """A reader for one choice."""
        return AnswerReader(self.form, self.tools, self.is_thinking, self.single)

    @property
    def thought_marks(self) -> tuple[str, str] | None:
        """What begins and ends a thought; None: the model has none that is known."""
        if self.form.is_harmony:
            return f"{CHANNEL}analysis{MESSAGE}", ENDS[0]
        marks = THOUGHTS.get(self.form.thoughts or "")
        return None if marks is None else (marks.start, marks.end)


def reading_of(form: AnswerFormat, tool_use: ToolUse, prompt: str, continued: str | None) -> Reading:
    """How an answer to this prompt is read. `continued`: the beginning of the answer that the prompt ends with.

    Raises RefusedError for tools whose calls could not be read.
    """
    if tool_use.mode is ToolMode.REQUIRED:
        raise unsupported("tool_choice", "only the model chooses whether it calls a tool")
    if tool_use.callable and form.calls is None:
        raise unsupported("tools", "it is not known how this model writes calls")
    marks = THOUGHTS.get(form.thoughts or "")
    if continued is None:
        is_thinking = opens_thought(form, prompt)
    else:
        is_thinking = marks is not None and continued.rfind(marks.start) > continued.rfind(marks.end)
    return Reading(form, tool_use.callable, is_thinking, bool(tool_use.callable) and not tool_use.parallel)


def bound_form(form: AnswerFormat) -> AnswerFormat:
    """How calls are written under a grammar."""
    return form if form.calls in BOUND or form.is_harmony else replace(form, calls=BOUND_FORM)
