"""What binds an answer that must call tools, or that calls strict ones: a grammar around the tools' own schemas.

Calls are written in the model's own way, its marks as the special tokens that they are. Only where a format has no way
to write some arguments they are written as Hermes writes them: the grammar forces it, and the reader of that name
reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton_gateway.answers.call_syntax import CALL_SYNTAX, HERMES, CallSyntax
from baton_gateway.answers.formats import AnswerFormat
from baton_gateway.answers.harmony import ASSISTANT, CHANNEL, CHANNELS, ENDS, MESSAGE, START
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import unsupported
from baton_gateway.structured_outputs.lark import literal, pattern_containing, to_terms
from baton_gateway.structured_outputs.object_rules import can_write_members
from baton_gateway.structured_outputs.output_format import NamedSchema, OutputFormat, composed_format, named_schema

MAX_CALLS = 16
"""Of one answer that must call tools; without a bound a model could go on until its tokens are spent."""


def is_constrained(tool_use: ToolUse) -> bool:
    """Whether calls follow a grammar."""
    is_strict = any(tool.strict for tool in tool_use.callable)
    return tool_use.mode is ToolMode.REQUIRED or (tool_use.mode is ToolMode.AUTO and is_strict)


def constrained_format(form: AnswerFormat, tool_use: ToolUse) -> AnswerFormat:
    """How calls are written when they follow a grammar.

    Raises RefusedError for a strict tool whose calls cannot be told from text before they are read.
    """
    written = CALL_SYNTAX.get(form.calls or "")
    is_auto = tool_use.mode is ToolMode.AUTO
    if written is not None and (not is_auto or _is_told_apart(form, written)):
        unwritten = next((tool for tool in tool_use.callable if not _takes(tool, written, is_auto)), None)
        if unwritten is None:
            return form
    if not is_auto or (written is not None and written.mark == CALL_SYNTAX[HERMES].mark):
        return replace(form, calls=HERMES)
    place = next(place for place, tool in enumerate(tool_use.tools) if tool.strict)
    reason = f"with tool_choice 'auto' this model's calls ('{form.calls}') cannot be held to a schema"
    if written is not None and written.members is not None:
        reason = f"with tool_choice 'auto' calls as '{form.calls}' cannot be held to this schema"
    raise unsupported(f"tools[{place}].function.strict", reason)


def _is_told_apart(form: AnswerFormat, written: CallSyntax) -> bool:
    """Whether calls can be told from text: in Harmony only by marks that are tokens."""
    return not written.first or {START, CHANNEL, MESSAGE, ENDS[0]} <= dict(form.tokens).keys()


def _takes(tool: Tool, written: CallSyntax, is_auto: bool) -> bool:
    return written.members is None or can_write_members(_parameters(tool, is_auto), written.members)


def tool_format(form: AnswerFormat, tool_use: ToolUse) -> OutputFormat:
    """The shape of answers in a form of `constrained_format`. Raises RefusedError for schemas that are too long together."""
    written, marks = CALL_SYNTAX[form.calls or HERMES], dict(form.tokens)
    numbers = {tool.name: number for number, tool in enumerate(tool_use.tools)}
    schemas = [_schema(tool, numbers[tool.name], tool_use.mode, written) for tool in tool_use.callable]
    calls = [
        f"call_{numbers[tool.name]}: {to_terms(written.before + tool.name + written.between, marks)} "
        f"arguments_{numbers[tool.name]} {_closing(written, marks)}"
        for tool in tool_use.callable
    ]
    either = "called: " + " | ".join(f"call_{numbers[tool.name]}" for tool in tool_use.callable)
    frame = _free(written, tool_use, marks) if tool_use.mode is ToolMode.AUTO else _forced(written, tool_use, marks)
    return composed_format("\n".join([*frame, either, *calls]), schemas, "tools", form.tokens)


def _closing(written: CallSyntax, marks: dict[str, int]) -> str:
    """What ends a call. A token that ends an answer as a whole need not come: workers end there by themselves."""
    closing = to_terms(written.close, marks)
    return f"({closing})?" if written.first and written.close in marks else closing


def _is_single(tool_use: ToolUse) -> bool:
    return tool_use.named is not None or not tool_use.parallel


def _calls(written: CallSyntax, tool_use: ToolUse, marks: dict[str, int], begin: str) -> str:
    """Terms for the calls behind `begin`, each of which rule `call` leads to."""
    more = f" ({to_terms(written.separator, marks)} call){{0,{MAX_CALLS - 1}}}" if not _is_single(tool_use) else ""
    return f"{to_terms(begin, marks)} call{more} {to_terms(written.end, marks)}"


def _forced(written: CallSyntax, tool_use: ToolUse, marks: dict[str, int]) -> Sequence[str]:
    """An answer that is calls and nothing else."""
    lead = f"({to_terms(written.first, marks)})? " if written.first else "BLANK? "
    blank = () if written.first else (r"BLANK: /\n{1,2}/",)
    calls = _calls(written, tool_use, marks, written.begin)
    return (f"start: {lead}{calls}", *blank, f"call: {to_terms(written.open, marks)} called")


def _free(written: CallSyntax, tool_use: ToolUse, marks: dict[str, int]) -> Sequence[str]:
    """Text in which calls begin behind a mark, or that is calls from its beginning."""
    if written.first:
        return _messages(written, tool_use, marks)
    mark, is_token = written.mark, written.mark in marks
    silent = " | ".join(to_terms(each, marks) for each in written.silent if each in marks)
    text = r"/(.|\n)*/" if not written.bare else rf"/\s*([^\s\x1c-\x1f\{written.bare}](.|\n)*)?/"
    rules = [
        f"TEXT: {text}{f' & ~{pattern_containing(mark)}' if is_token else ''}",
        f"opening: text <[{marks[mark]}]>" if is_token else f"opening[lazy]: TEXT {literal(mark)}",
        f"text: TEXT (({silent}) TEXT)*" if silent and not written.bare else "text: TEXT",
    ]
    group = _calls(written, tool_use, marks, written.begin.removeprefix(mark))
    if written.bare:
        end = f"({silent})?" if silent else ""
        return (f"start: opening? group {end} | text", f"group: {group}", "call: called", *rules)
    repeat = "?" if _is_single(tool_use) else "*"
    if written.open:
        return (
            f"start: unit{repeat} text",
            f"unit: opening {to_terms(written.open.removeprefix(mark), marks)} called",
            *rules,
        )
    return (f"start: unit{repeat} text", f"unit: opening {group}", "call: called", *rules)


def _messages(written: CallSyntax, tool_use: ToolUse, marks: dict[str, int]) -> Sequence[str]:
    """Harmony: messages on channels, then a last one, or calls."""
    head, end = to_terms(START + ASSISTANT, marks), to_terms(ENDS[0], marks)
    excluded = " & ".join(f"~{pattern_containing(mark)}" for mark in (START, CHANNEL, MESSAGE, *ENDS))
    return (
        f"start: ({head})? (header TEXT {end} {head})* last",
        f"last: header TEXT | {_calls(written, tool_use, marks, '')}",
        f"call: {to_terms(written.open, marks)} called",
        "header: " + " | ".join(to_terms(f"{CHANNEL}{each}{MESSAGE}", marks) for each in CHANNELS),
        rf"TEXT: /(.|\n)*/ & {excluded}",
    )


def _schema(tool: Tool, number: int, mode: ToolMode, written: CallSyntax) -> NamedSchema:
    field = f"tools[{number}].function.parameters"
    schema = {"type": "object", **_parameters(tool, mode is ToolMode.AUTO)}
    return named_schema(schema, field, tool.strict, f"arguments_{number}", written.members)


def _parameters(tool: Tool, is_auto: bool) -> dict[str, object]:
    """The schema that a call of a tool keeps to."""
    is_free = tool.parameters is None or (is_auto and not tool.strict)
    return {} if is_free else dict(tool.parameters or {})
