"""The grammar of an answer that must call tools, or may call strict ones, built around the tools' own schemas.

Calls follow the model's own syntax, with its marks as special tokens. If that syntax cannot express some arguments, the
grammar forces Hermes' syntax, and the parser of Hermes reads it.
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
"""The most calls of one answer; without a bound a model could go on until its tokens are used up."""


def is_constrained(tool_use: ToolUse) -> bool:
    """Return True if calls follow a grammar."""
    is_strict = any(tool.strict for tool in tool_use.callable)
    return tool_use.mode is ToolMode.REQUIRED or (tool_use.mode is ToolMode.AUTO and is_strict)


def constrained_format(form: AnswerFormat, tool_use: ToolUse) -> AnswerFormat:
    """Return the format of calls that follow a grammar.

    Raises RefusedError for a strict tool whose calls cannot be distinguished from text before they are parsed.
    """
    syntax = CALL_SYNTAX.get(form.calls or "")
    is_auto = tool_use.mode is ToolMode.AUTO
    if syntax is not None and (not is_auto or _is_distinguishable(form, syntax)):
        unwritten = next((tool for tool in tool_use.callable if not _can_write(tool, syntax, is_auto)), None)
        if unwritten is None:
            return form
    if not is_auto or (syntax is not None and syntax.mark == CALL_SYNTAX[HERMES].mark):
        return replace(form, calls=HERMES)
    index = next(index for index, tool in enumerate(tool_use.tools) if tool.strict)
    reason = f"with tool_choice 'auto' this model's calls ('{form.calls}') cannot be held to a schema"
    if syntax is not None and syntax.members is not None:
        reason = f"with tool_choice 'auto' calls as '{form.calls}' cannot be held to this schema"
    raise unsupported(f"tools[{index}].function.strict", reason)


def _is_distinguishable(form: AnswerFormat, syntax: CallSyntax) -> bool:
    """Return True if calls can be distinguished from text: in Harmony only by marks that are tokens."""
    return not syntax.first or {START, CHANNEL, MESSAGE, ENDS[0]} <= dict(form.tokens).keys()


def _can_write(tool: Tool, syntax: CallSyntax, is_auto: bool) -> bool:
    return syntax.members is None or can_write_members(_arguments_schema(tool, is_auto), syntax.members)


def tool_format(form: AnswerFormat, tool_use: ToolUse) -> OutputFormat:
    """Build the format of answers in `form`, from `constrained_format`. Raises RefusedError if schemas are too long."""
    syntax, marks = CALL_SYNTAX[form.calls or HERMES], dict(form.tokens)
    numbers = {tool.name: number for number, tool in enumerate(tool_use.tools)}
    schemas = [_schema(tool, numbers[tool.name], tool_use.mode, syntax) for tool in tool_use.callable]
    calls = [
        f"call_{numbers[tool.name]}: {to_terms(syntax.before + tool.name + syntax.between, marks)} "
        f"arguments_{numbers[tool.name]} {_closing(syntax, marks)}"
        for tool in tool_use.callable
    ]
    either = "called: " + " | ".join(f"call_{numbers[tool.name]}" for tool in tool_use.callable)
    build = _auto_rules if tool_use.mode is ToolMode.AUTO else _required_rules
    frame = build(syntax, tool_use, marks)
    return composed_format("\n".join([*frame, either, *calls]), schemas, "tools", form.tokens)


def _closing(syntax: CallSyntax, marks: dict[str, int]) -> str:
    """Return the terms that end a call. A token that ends the whole answer is optional: workers stop there anyway."""
    closing = to_terms(syntax.close, marks)
    return f"({closing})?" if syntax.first and syntax.close in marks else closing


def _is_single(tool_use: ToolUse) -> bool:
    return tool_use.named is not None or not tool_use.parallel


def _calls(syntax: CallSyntax, tool_use: ToolUse, marks: dict[str, int], begin: str) -> str:
    """Return the terms of `begin` and the calls after it, each an instance of the rule `call`."""
    more = f" ({to_terms(syntax.separator, marks)} call){{0,{MAX_CALLS - 1}}}" if not _is_single(tool_use) else ""
    return f"{to_terms(begin, marks)} call{more} {to_terms(syntax.end, marks)}"


def _required_rules(syntax: CallSyntax, tool_use: ToolUse, marks: dict[str, int]) -> Sequence[str]:
    """Return the rules of an answer that is nothing but calls."""
    lead = f"({to_terms(syntax.first, marks)})? " if syntax.first else "BLANK? "
    blank = () if syntax.first else (r"BLANK: /\n{1,2}/",)
    calls = _calls(syntax, tool_use, marks, syntax.begin)
    return (f"start: {lead}{calls}", *blank, f"call: {to_terms(syntax.open, marks)} called")


def _auto_rules(syntax: CallSyntax, tool_use: ToolUse, marks: dict[str, int]) -> Sequence[str]:
    """Return the rules of text in which calls begin after a mark, or at its beginning."""
    if syntax.first:
        return _harmony_rules(syntax, tool_use, marks)
    mark, is_token = syntax.mark, syntax.mark in marks
    ignored = " | ".join(to_terms(text, marks) for text in syntax.ignored if text in marks)
    text = r"/(.|\n)*/" if not syntax.bare_prefix else rf"/\s*([^\s\x1c-\x1f\{syntax.bare_prefix}](.|\n)*)?/"
    rules = [
        f"TEXT: {text}{f' & ~{pattern_containing(mark)}' if is_token else ''}",
        f"opening: text <[{marks[mark]}]>" if is_token else f"opening[lazy]: TEXT {literal(mark)}",
        f"text: TEXT (({ignored}) TEXT)*" if ignored and not syntax.bare_prefix else "text: TEXT",
    ]
    group = _calls(syntax, tool_use, marks, syntax.begin.removeprefix(mark))
    if syntax.bare_prefix:
        end = f"({ignored})?" if ignored else ""
        return (f"start: opening? group {end} | text", f"group: {group}", "call: called", *rules)
    repeat = "?" if _is_single(tool_use) else "*"
    if syntax.open:
        return (
            f"start: unit{repeat} text",
            f"unit: opening {to_terms(syntax.open.removeprefix(mark), marks)} called",
            *rules,
        )
    return (f"start: unit{repeat} text", f"unit: opening {group}", "call: called", *rules)


def _harmony_rules(syntax: CallSyntax, tool_use: ToolUse, marks: dict[str, int]) -> Sequence[str]:
    """Return the rules of Harmony: messages on channels, then a last message or calls."""
    head, end = to_terms(START + ASSISTANT, marks), to_terms(ENDS[0], marks)
    excluded = " & ".join(f"~{pattern_containing(mark)}" for mark in (START, CHANNEL, MESSAGE, *ENDS))
    return (
        f"start: ({head})? (header TEXT {end} {head})* last",
        f"last: header TEXT | {_calls(syntax, tool_use, marks, '')}",
        f"call: {to_terms(syntax.open, marks)} called",
        "header: " + " | ".join(to_terms(f"{CHANNEL}{channel}{MESSAGE}", marks) for channel in CHANNELS),
        rf"TEXT: /(.|\n)*/ & {excluded}",
    )


def _schema(tool: Tool, number: int, mode: ToolMode, syntax: CallSyntax) -> NamedSchema:
    field = f"tools[{number}].function.parameters"
    schema = {"type": "object", **_arguments_schema(tool, mode is ToolMode.AUTO)}
    return named_schema(schema, field, tool.strict, f"arguments_{number}", syntax.members)


def _arguments_schema(tool: Tool, is_auto: bool) -> dict[str, object]:
    """Return the schema that a tool's arguments must follow."""
    is_free = tool.parameters is None or (is_auto and not tool.strict)
    return {} if is_free else dict(tool.parameters or {})
