"""What binds an answer that must call tools, or that calls strict ones: a grammar around the tools' own schemas.

A call that must come is written in the model's own way where that is plain text, else as Hermes writes it: then the
grammar forces it, and the reader of the same name reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from baton_gateway.answers.formats import HARMONY, AnswerFormat
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import unsupported
from baton_gateway.shapes.answer_shape import AnswerShape, NamedSchema, composed_shape, named_schema
from baton_gateway.shapes.lark import literal

MOST_CALLS = 16
"""Of one answer that must call tools; without a bound a model could go on until its tokens are spent."""


@dataclass(frozen=True, slots=True)
class _CallText:
    """How a format writes one call: text before the name, between name and arguments, and after them."""

    open: str
    before: str
    between: str
    after: str
    separator: str
    first: str = ""
    """What may stand before the first call."""


_HERMES = "hermes"
_WRITTEN = {
    _HERMES: _CallText("<tool_call>", '\n{"name": "', '", "arguments": ', "}\n</tool_call>", "\n"),
    "llama3_json": _CallText("", '{"name": "', '", "parameters": ', "}", "; "),
    HARMONY: _CallText(
        "<|channel|>commentary to=functions.",
        "",
        " <|constrain|>json<|message|>",
        "<|call|>",
        "<|start|>assistant",
        "<|start|>assistant",
    ),
}
_FREE_TO_CALL = {_HERMES: _HERMES, "qwen3_coder": _HERMES, "glm": _HERMES}
"""Formats whose opening mark is that of Hermes: behind it a strict call can be forced, and text before it is free."""


def is_bound(tool_use: ToolUse) -> bool:
    """Whether calls follow a grammar."""
    is_strict = any(tool.strict for tool in tool_use.callable)
    return tool_use.mode is ToolMode.REQUIRED or (tool_use.mode is ToolMode.AUTO and is_strict)


def bound_form(form: AnswerFormat, tool_use: ToolUse) -> AnswerFormat:
    """How calls are written when they follow a grammar.

    Raises RefusedError for a strict tool whose calls cannot be told from text before they are read.
    """
    if tool_use.mode is ToolMode.REQUIRED:
        return form if form.is_harmony or form.calls in _WRITTEN else replace(form, calls=_HERMES)
    if form.calls not in _FREE_TO_CALL:
        place = next(place for place, tool in enumerate(tool_use.tools) if tool.strict)
        reason = f"with tool_choice 'auto' this model's calls ('{form.calls}') cannot be held to a schema"
        raise unsupported(f"tools[{place}].function.strict", reason)
    return replace(form, calls=_FREE_TO_CALL[form.calls])


def tool_shape(form: AnswerFormat, tool_use: ToolUse) -> AnswerShape:
    """The shape of answers in a form of `bound_form`. Raises RefusedError for schemas that are too long together."""
    written = _WRITTEN[form.calls or _HERMES]
    numbers = {tool.name: number for number, tool in enumerate(tool_use.tools)}
    schemas = [_schema(tool, numbers[tool.name], tool_use.mode) for tool in tool_use.callable]
    calls = [
        f"call_{numbers[tool.name]}: {_text(written.before + tool.name + written.between)} "
        f"arguments_{numbers[tool.name]} {_text(written.after)}"
        for tool in tool_use.callable
    ]
    either = "called: " + " | ".join(f"call_{numbers[tool.name]}" for tool in tool_use.callable)
    return composed_shape("\n".join([*_frame(written, tool_use), either, *calls]), schemas, "tools")


def _frame(written: _CallText, tool_use: ToolUse) -> Sequence[str]:
    is_single = tool_use.named is not None or not tool_use.parallel
    if tool_use.mode is ToolMode.AUTO:
        start = "start: call? tail" if is_single else "start: call* tail"
        return (
            start,
            "tail: TEXT",
            r"TEXT: /(.|\n)*/",
            f"opening[lazy]: TEXT {literal(written.open)}",
            "call: opening called",
        )
    more = "" if is_single else f" ({_text(written.separator)} call){{0,{MOST_CALLS - 1}}}"
    begin = f"({literal(written.first)})? " if written.first else "BLANK? "
    blank = () if written.first else (r"BLANK: /\n{1,2}/",)
    return (f"start: {begin}call{more}", *blank, f"call: {_text(written.open)} called")


def _schema(tool: Tool, number: int, mode: ToolMode) -> NamedSchema:
    is_free = tool.parameters is None or (mode is ToolMode.AUTO and not tool.strict)
    schema = {"type": "object"} if is_free else {"type": "object", **(tool.parameters or {})}
    field = f"tools[{number}].function.parameters"
    return named_schema(schema, field, is_strict=tool.strict, rule=f"arguments_{number}")


def _text(text: str) -> str:
    return literal(text) if text else ""
