"""The grammar of an answer that must call tools, may call strict ones, or either calls or has a format of its own.

It is built around the tools' own schemas. Calls follow the model's own syntax, with its marks as special tokens. If
that syntax cannot express some arguments, the grammar forces Hermes' syntax, and the parser of Hermes reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from baton_gateway.answers.call_syntax import CALL_SYNTAX, HERMES, CallSyntax
from baton_gateway.answers.formats import AnswerFormat
from baton_gateway.answers.harmony import ASSISTANT, CHANNEL, CHANNELS, ENDS, MESSAGE, START
from baton_gateway.answers.tool_use import Tool, ToolMode, ToolUse
from baton_gateway.errors import unsupported
from baton_gateway.structured_outputs.json_schema import Enforcement
from baton_gateway.structured_outputs.lark import literal, pattern_containing, to_terms
from baton_gateway.structured_outputs.object_rules import can_write_members
from baton_gateway.structured_outputs.output_format import (
    NamedSchema,
    OutputFormat,
    composed_format,
    named_schema,
    write_answer,
)

MAX_CALLS = 16
"""The most calls of one answer; without a bound a model could go on until its tokens are used up."""


def is_constrained(tool_use: ToolUse) -> bool:
    """Return True if calls follow a grammar."""
    is_strict = any(tool.strict for tool in tool_use.callable)
    return tool_use.mode is ToolMode.REQUIRED or (tool_use.mode is ToolMode.AUTO and is_strict)


def may_answer_instead(tool_use: ToolUse, answer: OutputFormat | None) -> bool:
    """Return True if the answer is either calls or follows the format of `answer`, which the client asked for."""
    return answer is not None and tool_use.mode is ToolMode.AUTO and bool(tool_use.callable)


def constrained_format(form: AnswerFormat, tool_use: ToolUse, answer: OutputFormat | None = None) -> AnswerFormat:
    """Return the format of calls that follow a grammar. `answer`: the format of an answer without calls.

    Raises RefusedError for a strict tool whose calls cannot be distinguished from text before they are parsed.
    """
    if may_answer_instead(tool_use, answer):
        return _format_beside_answer(form, tool_use)
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
    raise unsupported(f"{tool_use.tools[index].path or f'tools[{index}]'}.function.strict", reason)


def _format_beside_answer(form: AnswerFormat, tool_use: ToolUse) -> AnswerFormat:
    """Return the format of calls of which an answer consists wholly, unless it has a format of its own."""
    if form.calls is None:
        raise unsupported("tools", "this model's format of calls is not known; 'tool_choice' may require one")
    syntax = CALL_SYNTAX[form.calls]
    can_write = all(_can_write(tool, syntax, is_auto=True) for tool in tool_use.callable)
    return form if can_write else replace(form, calls=HERMES)


def _is_distinguishable(form: AnswerFormat, syntax: CallSyntax) -> bool:
    """Return True if calls can be distinguished from text: in Harmony only by marks that are tokens."""
    return not syntax.first or {START, CHANNEL, MESSAGE, ENDS[0]} <= dict(form.tokens).keys()


def _can_write(tool: Tool, syntax: CallSyntax, is_auto: bool) -> bool:
    return syntax.members is None or can_write_members(_arguments_schema(tool, is_auto), syntax.members)


def tool_format(form: AnswerFormat, tool_use: ToolUse, answer: OutputFormat | None = None) -> OutputFormat:
    """Build the format of answers in `form`, from `constrained_format`. `answer`: the format of an answer without calls
    if the model may choose. Raises RefusedError if schemas are too long, or for an `answer` that calls exclude.
    """
    syntax, marks = CALL_SYNTAX[form.calls or HERMES], dict(form.tokens)
    field = "tools"
    if answer is not None and may_answer_instead(tool_use, answer):
        is_object = syntax.bare_prefix == "{"
        field, written = answer.field, write_answer(answer, "" if syntax.mark in marks else syntax.mark)
        frame = [*_either_rules(syntax, tool_use, marks, _is_distinguishable(form, syntax)), *written.rules]
        schemas = list(written.schemas)
    else:
        is_object, schemas = False, []
        build = _auto_rules if tool_use.mode is ToolMode.AUTO else _required_rules
        frame = list(build(syntax, tool_use, marks))
    names = []
    for number, tool in enumerate(tool_use.tools):
        if tool not in tool_use.callable:
            continue
        schema = _schema(tool, number, tool_use.mode, syntax)
        if is_object:  # a text such as '{"name": ' would hide other objects from the grammar
            schemas.append(msgspec.structs.replace(schema, rule=f"call_{number}", called=tool.name))
        else:
            head = to_terms(syntax.before + tool.name + syntax.between, marks)
            frame.append(f"call_{number}: {head} arguments_{number} {_closing(syntax, marks)}")
            schemas.append(schema)
        names.append(f"call_{number}")
    return composed_format("\n".join([*frame, f"called: {' | '.join(names)}"]), schemas, field, form.tokens)


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


def _either_rules(
    syntax: CallSyntax, tool_use: ToolUse, marks: dict[str, int], is_distinguishable: bool
) -> Sequence[str]:
    """Return the rules of an answer that is nothing but calls, or what the rule `answer` matches."""
    call = f"call: {to_terms(syntax.open, marks)} called"
    calls = _calls(syntax, tool_use, marks, syntax.begin)
    if not syntax.first:
        begin = f"<[{marks[syntax.mark]}]> " if syntax.bare_prefix and syntax.mark in marks else ""
        called = f"({calls} | {begin}{calls})" if begin else calls
        return (f"start: {called} | answer", call)  # a blank before both would be a part of the answer
    head, end = to_terms(START + ASSISTANT, marks), to_terms(ENDS[0], marks)
    last = to_terms(f"{CHANNEL}{CHANNELS[-1]}{MESSAGE}", marks)
    if not is_distinguishable:
        return (f"start: ({head})? ({calls} | {last} answer)", call)
    thought, remark = (to_terms(f"{CHANNEL}{channel}{MESSAGE}", marks) for channel in CHANNELS[:2])
    excluded = " & ".join(f"~{pattern_containing(mark)}" for mark in (START, CHANNEL, MESSAGE, *ENDS))
    return (
        f"start: ({head})? (thought* {last} answer | (thought | remark)* {calls})",
        f"thought: {thought} TEXT {end} {head}",
        f"remark: {remark} TEXT {end} {head}",
        call,
        rf"TEXT: /(.|\n)*/ & {excluded}",
    )


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
    field = f"{tool.path or f'tools[{number}]'}.function.parameters"
    schema = {"type": "object", **_arguments_schema(tool, mode is ToolMode.AUTO)}
    demand = Enforcement.STRICT if tool.strict else Enforcement.SUPPORTED
    return named_schema(schema, field, demand, f"arguments_{number}", syntax.members)


def _arguments_schema(tool: Tool, is_auto: bool) -> dict[str, object]:
    """Return the schema that a tool's arguments must follow."""
    is_free = tool.parameters is None or (is_auto and not tool.strict)
    return {} if is_free else dict(tool.parameters or {})
