"""The known formats of model output by name, and how a chat template reveals which of them its model uses.

A new format is a row here and a name in `baton_wire.rules.answer_formats`. A new syntax of calls also needs a class
like those in `call_formats`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from baton_gateway.answers.call_formats import (
    BareJsonCalls,
    CallFormat,
    JsonCalls,
    MistralCalls,
    NamedJsonCalls,
    PythonCalls,
    PythonLines,
)
from baton_gateway.answers.harmony import CHANNEL, ENDS, MESSAGE, START
from baton_gateway.answers.tagged_calls import TaggedCalls
from baton_wire.rules.answer_formats import (
    AUTO,
    HARMONY,
    NONE,
    REASONING_FORMAT_NAMES,
    TOOL_FORMAT_NAMES,
    are_compatible,
)


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The marks around a model's reasoning, which comes before its answer."""

    start: str
    end: str
    answer: tuple[str, ...] = ()
    """Two marks around the answer itself; the closing one counts where nothing but a call follows."""


REASONING_FORMATS: Mapping[str, ReasoningMarks] = {
    "think": ReasoningMarks("<think>", "</think>"),
    "think_answer": ReasoningMarks("<think>", "</think>", ("<answer>", "</answer>")),
    "think_response": ReasoningMarks("<think>", "</think>", ("<response>", "</response>")),
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
        openers=("<tool_call>",),
        before_name="<function=",
        after_name=">",
        key_open="<parameter=",
        key_close=">",
        value_open="",
        value_closes=("\n</parameter>", "</parameter>"),
        value_begins="\n",
        end="</function>",
        close="</tool_call>",
        unmarked=("<function=",),
    ),
    "glm": TaggedCalls(
        openers=("<tool_call>",),
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
        openers=("<｜tool▁call▁begin｜>",),
        before="function<｜tool▁sep｜>",
        between="\n```json\n",
        after="```",
        close="<｜tool▁call▁end｜>",
        ignored=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "deepseek_v31": NamedJsonCalls(
        openers=("<｜tool▁call▁begin｜>",),
        before="",
        between="<｜tool▁sep｜>",
        after="",
        close="<｜tool▁call▁end｜>",
        ignored=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    "seed_oss": TaggedCalls(
        openers=("<seed:tool_call>",),
        before_name="<function=",
        after_name=">",
        key_open="<parameter=",
        key_close=">",
        value_open="",
        value_closes=("</parameter>",),
        value_begins="",
        end="</function>",
        close="</seed:tool_call>",
        unmarked=("<function=",),
    ),
    "minimax_m2": TaggedCalls(
        openers=("<minimax:tool_call>",),
        before_name='<invoke name="',
        after_name='">',
        key_open='<parameter name="',
        key_close='">',
        value_open="",
        value_closes=("</parameter>",),
        value_begins="",
        end="</invoke>",
        close="</minimax:tool_call>",
        unmarked=('<invoke name="',),
    ),
    "granite": JsonCalls(
        ("<|tool_call|>", "<tool_call>"),
        "<|/tool_call|>",  # of Phi-4-mini; Granite writes no closing mark
        ignored=("</tool_call>",),
        bare_prefixes=("[", "{"),
    ),
    "hunyuan_a13b": JsonCalls(("<tool_calls>",), "</tool_calls>", bare_prefixes=("[", "{")),
    "olmo3": PythonLines(("<function_calls>",), "</function_calls>"),
}
_TEMPLATE_TEXTS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((CHANNEL, "to=functions."), HARMONY),
    (("<｜tool▁calls▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁calls▁begin｜>",), "deepseek_v31"),
    (("[TOOL_CALLS]", "[ARGS]"), "mistral_args"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<seed:tool_call>",), "seed_oss"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<function_calls>",), "olmo3"),
    (("<tool_calls>[",), "hunyuan_a13b"),
    (("<|tool_call|>",), "granite"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<arg_key>",), "glm"),
    (("<tool_call>",), "hermes"),
    (("<|python_start|>",), "pythonic"),
    (("[func_name1(",), "pythonic"),
    (("tools", '"parameters"', "<|eot_id|>"), "llama3_json"),
)
"""Texts that a format's templates contain, all of them; the first match counts."""
_TEMPLATE_THOUGHTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("</think>", "<tool_calls>["), "think_answer"),
    (("<think></think>", "<response></response>"), "think_response"),
    (("think_mode=True", "<response>"), "think_response"),
    *(((marks.end,), name) for name, marks in REASONING_FORMATS.items()),
)
"""The same for reasoning. Tools' results may stand in `<response>` too, so this mark alone reveals nothing."""


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The format of one model's output. None: the model writes no reasoning or calls, or their format is unknown."""

    thoughts: str | None = None
    calls: str | None = None
    tokens: tuple[tuple[str, int], ...] = ()
    """The marks that are special tokens, with their ids. They become text."""

    @property
    def is_harmony(self) -> bool:
        return HARMONY in (self.thoughts, self.calls)

    def marks(self, with_calls: bool) -> frozenset[str]:
        """Return all texts that the parser looks for."""
        if self.is_harmony:
            return frozenset((START, CHANNEL, MESSAGE, "<|constrain|>", *ENDS))
        marks = set(_texts(REASONING_FORMATS[self.thoughts])) if self.thoughts is not None else set()
        if with_calls:  # required calls may be written as Hermes
            marks |= {text for name in (self.calls, "hermes") if name for text in _texts(TOOL_CALL_FORMATS[name])}
        return frozenset(marks)


UNKNOWN_FORMAT = AnswerFormat()


@dataclass(frozen=True, slots=True)
class FormatNames:
    """The formats that a user names for a model whose template reveals none, or the wrong ones."""

    calls: str = AUTO
    thoughts: str = AUTO

    def __post_init__(self) -> None:
        """Raises ValueError for unknown names, and for Harmony together with another format."""
        for name, allowed in ((self.calls, TOOL_FORMAT_NAMES), (self.thoughts, REASONING_FORMAT_NAMES)):
            if name not in allowed:
                raise ValueError(f"{name[:64]!r} is none of {', '.join(allowed)}")
        if not are_compatible(self.calls, self.thoughts):
            raise ValueError(f"'{HARMONY}' is the format of calls and of reasoning at once")

    def resolve(self, template: str) -> AnswerFormat:
        """Return the format of a model with this chat template."""
        detected = detect_format(template)
        if HARMONY in (self.calls, self.thoughts):
            return AnswerFormat(HARMONY, HARMONY)
        if detected.is_harmony and (self.calls, self.thoughts) != (AUTO, AUTO):
            detected = UNKNOWN_FORMAT
        calls = detected.calls if self.calls == AUTO else self.calls
        thoughts = detected.thoughts if self.thoughts == AUTO else self.thoughts
        return AnswerFormat(None if thoughts == NONE else thoughts, None if calls == NONE else calls)


DETECTED_FORMATS = FormatNames()


def detect_format(template: str) -> AnswerFormat:
    """Detect the format of a model's output from its chat template."""
    calls = next((name for marks, name in _TEMPLATE_TEXTS if all(mark in template for mark in marks)), None)
    if CHANNEL in template:
        return AnswerFormat(HARMONY, HARMONY)
    thoughts = next((name for marks, name in _TEMPLATE_THOUGHTS if all(mark in template for mark in marks)), None)
    return AnswerFormat(thoughts, calls)


def reasoning_marks() -> frozenset[str]:
    """Return the marks of reasoning of all formats: workers may need their ids."""
    return frozenset(text for marks in (*REASONING_FORMATS.values(), HARMONY_REASONING) for text in _texts(marks))


def _texts(row: object) -> Iterator[str]:
    assert dataclasses.is_dataclass(row)
    for field in dataclasses.fields(row):
        value = getattr(row, field.name)
        if isinstance(value, str | tuple):
            yield from (value,) if isinstance(value, str) else value
