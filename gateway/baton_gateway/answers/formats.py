"""The formats that are known, by name, and how a model's own files tell which it uses.

A further format is a row here. One with a new shape of its calls needs a reader beside those of `call_formats`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from baton_gateway.answers.call_formats import BareJsonCalls, CallFormat, JsonCalls, MistralCalls, NamedJsonCalls
from baton_gateway.answers.harmony import CHANNEL, ENDS, MESSAGE, START
from baton_gateway.answers.python_calls import PythonCalls
from baton_gateway.answers.tagged_calls import TaggedCalls

HARMONY = "harmony"
"""Names a format of calls and of thoughts at once."""
NONE = "none"
"""Nothing is read: neither calls nor thoughts."""


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """Between what a model thinks, before it answers."""

    start: str
    end: str


REASONING_FORMATS: Mapping[str, ReasoningMarks] = {
    "think": ReasoningMarks("<think>", "</think>"),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
    "seed": ReasoningMarks("<seed:think>", "</seed:think>"),
}
HARMONY_REASONING = ReasoningMarks(f"{CHANNEL}analysis{MESSAGE}", ENDS[0])
TOOL_CALL_FORMATS: Mapping[str, CallFormat] = {
    "hermes": JsonCalls(("<tool_call>",), "</tool_call>"),
    "llama3_json": BareJsonCalls(("<|python_tag|>",), (";", ",")),
    "pythonic": PythonCalls(("<|python_start|>",), ("<|python_end|>",)),
    "mistral": MistralCalls(),
    "mistral_args": MistralCalls(),
    "qwen3_coder": TaggedCalls(
        opens=("<tool_call>",),
        before_name="<function=",
        after_name=">",
        key_open="<parameter=",
        key_close=">",
        value_open="",
        value_closes=("\n</parameter>", "</parameter>"),
        value_begins="\n",
        end="</function>",
        close="</tool_call>",
    ),
    "glm": TaggedCalls(
        opens=("<tool_call>",),
        before_name="",
        after_name="",
        key_open="<arg_key>",
        key_close="</arg_key>",
        value_open="<arg_value>",
        value_closes=("</arg_value>",),
        value_begins="",
        end="",
        close="</tool_call>",
    ),
    "deepseek_v3": NamedJsonCalls(
        opens=("<｜tool▁call▁begin｜>",),
        before="function<｜tool▁sep｜>",
        between="\n```json\n",
        after="```",
        close="<｜tool▁call▁end｜>",
        silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "deepseek_v31": NamedJsonCalls(
        opens=("<｜tool▁call▁begin｜>",),
        before="",
        between="<｜tool▁sep｜>",
        after="",
        close="<｜tool▁call▁end｜>",
        silent=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
}
_IN_TEMPLATES: tuple[tuple[tuple[str, ...], str], ...] = (
    ((CHANNEL, "to=functions."), HARMONY),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_args"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<arg_key>",), "glm"),
    (("<tool_call>",), "hermes"),
    (("<|python_start|>",), "pythonic"),
    (("[func_name1(",), "pythonic"),
    (("tools", '"parameters"', "<|eot_id|>"), "llama3_json"),
)
"""What templates of a format have in them; the first row counts."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How one model writes thoughts and calls. None: it is not known, or it does not."""

    thoughts: str | None = None
    calls: str | None = None
    tokens: tuple[tuple[str, int], ...] = ()
    """Special tokens among its marks, which become text, with their ids."""

    @property
    def is_harmony(self) -> bool:
        return HARMONY in (self.thoughts, self.calls)

    def marks(self, with_calls: bool) -> frozenset[str]:
        """Everything that the reader looks for, in pieces that are told apart by special tokens."""
        if self.is_harmony:
            return frozenset((START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS))
        found = set(_texts(REASONING_FORMATS[self.thoughts])) if self.thoughts is not None else set()
        if with_calls:  # calls that must come may be written as Hermes
            found |= {text for name in (self.calls, "hermes") if name for text in _texts(TOOL_CALL_FORMATS[name])}
        return frozenset(found)


UNKNOWN_FORMAT = AnswerFormat()
AUTO = "auto"
"""The model's template tells."""
TOOL_FORMAT_NAMES = (AUTO, NONE, *TOOL_CALL_FORMATS, HARMONY)
REASONING_FORMAT_NAMES = (AUTO, NONE, *REASONING_FORMATS, HARMONY)


@dataclass(frozen=True, slots=True)
class FormatNames:
    """What somebody says of a model's answers, where its template does not tell it or tells it wrong."""

    calls: str = AUTO
    thoughts: str = AUTO

    def __post_init__(self) -> None:
        """Raises ValueError for names that are not known, and for Harmony with another one."""
        for value, allowed in ((self.calls, TOOL_FORMAT_NAMES), (self.thoughts, REASONING_FORMAT_NAMES)):
            if value not in allowed:
                raise ValueError(f"{value[:64]!r} is none of {', '.join(allowed)}")
        others = {self.calls, self.thoughts} - {AUTO}
        if HARMONY in others and len(others) > 1:
            raise ValueError(f"'{HARMONY}' is the format of calls and of thoughts at once")

    def of(self, template: str) -> AnswerFormat:
        """The format of a model with this chat template."""
        found = detect_format(template)
        if HARMONY in (self.calls, self.thoughts):
            return AnswerFormat(HARMONY, HARMONY)
        if found.is_harmony and (self.calls, self.thoughts) != (AUTO, AUTO):
            found = UNKNOWN_FORMAT
        calls = found.calls if self.calls == AUTO else self.calls
        thoughts = found.thoughts if self.thoughts == AUTO else self.thoughts
        return AnswerFormat(None if thoughts == NONE else thoughts, None if calls == NONE else calls)


DETECTED_FORMATS = FormatNames()


def detect_format(template: str) -> AnswerFormat:
    """What a chat template tells of its model's answers."""
    calls = next((name for marks, name in _IN_TEMPLATES if all(mark in template for mark in marks)), None)
    if CHANNEL in template:
        return AnswerFormat(HARMONY, HARMONY)
    thoughts = next((name for name, marks in REASONING_FORMATS.items() if marks.end in template), None)
    return AnswerFormat(thoughts, calls)


def reasoning_marks() -> frozenset[str]:
    """Marks of thoughts of all formats: workers may be told their ids."""
    return frozenset(text for marks in (*REASONING_FORMATS.values(), HARMONY_REASONING) for text in _texts(marks))


def _texts(row: object) -> Iterator[str]:
    assert dataclasses.is_dataclass(row)
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        yield from (value,) if isinstance(value, str) else value
