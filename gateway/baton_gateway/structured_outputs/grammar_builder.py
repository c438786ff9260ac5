"""Builds the grammar of an output format in llguidance's own form, or refuses the format.

Runs in a helper process: see `format_compiler_main`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.format_errors import schema_error
from baton_gateway.structured_outputs.json_schema import CheckedSchema, Enforcement, check_schema
from baton_gateway.structured_outputs.lark import json_options, json_term, literal, read_lark
from baton_gateway.structured_outputs.object_rules import build_member_rules
from baton_gateway.structured_outputs.output_format import CompileResult, FormatKind, NamedSchema, OutputFormat
from baton_gateway.structured_outputs.pattern import PatternError, translate_pattern
from baton_gateway.structured_outputs.plain_schema import is_plain
from baton_wire.messages.values import MAX_GRAMMAR_CHARS

ANSWER_OPTIONS = json_options(indentation="*")
"""How JSON is written where it is the whole answer. The matcher counts its blanks: see `OutputFormat.grammar`."""
LIMITS = LLParserLimits(verbose_errors=False)
_BYTES = LLTokenizer("byte")
"""A vocabulary of the 256 bytes: a grammar that works with it works with any other."""
_encode = msgspec.json.Encoder().encode
_BLAME_S = 0.02
MAX_IGNORED = 16
"""The most places of keywords without effect that an answer names."""
MAX_PLACE_CHARS = 128
_MAX_REASON = 200
_NO_TOKEN = "NoExtensionBias"
"""The compiler's error for a grammar that allows no first token."""


def compile_format(output_format: OutputFormat) -> Iterator[CompileResult]:
    """Yield one result, or two: for a plain schema a provisional one comes before the compiler has checked it."""
    try:
        ignored: list[str] = []
        for grammar, is_provisional in _grammars(output_format, ignored):
            yield CompileResult(grammar, is_provisional=is_provisional, ignored=tuple(ignored[:MAX_IGNORED]))
    except RefusedError as refusal:
        problem = refusal.problem
        yield CompileResult(None, problem.param, problem.message, problem.code or "")


def build_grammar(output_format: OutputFormat) -> str:
    """Return the grammar. Raises RefusedError that names the place in the client's definition."""
    *_, (grammar, _) = _grammars(output_format, [])
    return grammar


def json_grammar(schema: dict[str, Any]) -> str:
    """Return what `LLMatcher.grammar_from_json_schema` returns with our options, in a thirtieth of the time."""
    grammar = {"name": "json_schema", "json_schema": schema | {"x-guidance": ANSWER_OPTIONS}, "lark_grammar": None}
    return _encode({"grammars": [grammar], "max_tokens": None}).decode()


def _grammars(output_format: OutputFormat, ignored: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield the grammar, and whether that is provisional: the compiler still has to check it, and it follows again.
    Keywords that are not enforced are added to `ignored`.
    """
    match output_format.kind:
        case FormatKind.JSON:
            yield from _json_grammars(output_format, ignored)
            return
        case FormatKind.REGEX:
            grammar = LLMatcher.grammar_from_regex(_translate_pattern(output_format))
        case FormatKind.CHOICE:
            grammar = _lark_grammar("start: " + " | ".join(map(literal, output_format.choices)))
        case FormatKind.LARK:
            grammar = _lark_grammar(_read_client_lark(output_format))
        case FormatKind.COMPOSED:
            rules = [line for named in output_format.schemas for line in _rules(named, output_format, ignored)]
            grammar = _lark_grammar("\n".join((output_format.source, *rules)))
    if (problem := _find_problem(grammar, is_tried=output_format.kind is not FormatKind.COMPOSED)) is not None:
        until = time.thread_time() + _BLAME_S
        for named in output_format.schemas:
            if (culprit := _find_culprit(_check(named), until)) is not None:
                raise schema_error(named.field, *culprit)
        raise schema_error(output_format.field, "", problem)
    yield grammar, False


def _json_grammars(output_format: OutputFormat, ignored: list[str]) -> Iterator[tuple[str, bool]]:
    checked = _check(output_format.schemas[0])
    ignored += _places(output_format.schemas[0], checked)
    grammar = json_grammar(checked.schema)
    if len(grammar) <= MAX_GRAMMAR_CHARS and is_plain(checked.schema):
        yield grammar, True
    if (problem := _find_problem(grammar)) is not None:
        raise schema_error(
            output_format.field, *(_find_culprit(checked, time.thread_time() + _BLAME_S) or ("", problem))
        )
    yield grammar, False


def _lark_grammar(source: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": source}]})


def _places(named: NamedSchema, checked: CheckedSchema) -> list[str]:
    """Return the places of keywords that are not enforced, in characters that a header may have."""
    return [f"{named.field}{quote(pointer, safe='/$')}"[:MAX_PLACE_CHARS] for pointer in checked.ignored]


def _rules(named: NamedSchema, output_format: OutputFormat, ignored: list[str]) -> list[str]:
    """Return the lines of Lark that define a schema's rule."""
    checked = _check(named)
    ignored += _places(named, checked)
    schema = checked.schema
    if named.called:
        schema = _call_object(named.called, schema)
    if named.called or named.members is None:
        return [f"{named.rule}: {json_term(schema)}"]
    return build_member_rules(named.rule, schema, named.members, dict(output_format.tokens))


def _call_object(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a call of a tool whose arguments follow a checked schema."""
    parameters = {key: value for key, value in arguments.items() if key != "$defs"}
    call: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }
    return call | ({"$defs": arguments["$defs"]} if "$defs" in arguments else {})


def _check(named: NamedSchema) -> CheckedSchema:
    return check_schema(msgspec.json.decode(named.definition), named.field, Enforcement(named.demand))


def _translate_pattern(output_format: OutputFormat) -> str:
    try:
        return translate_pattern(output_format.source, expands_classes=True)
    except PatternError as error:
        raise schema_error(output_format.field, "", str(error)) from error


def _read_client_lark(output_format: OutputFormat) -> str:
    field = output_format.field
    try:
        return read_lark(
            output_format.source, lambda schema: check_schema(_without_options(schema), field, Enforcement.USUAL).schema
        )
    except PatternError as error:
        raise schema_error(field, "", str(error)) from error


def _without_options(schema: Any) -> Any:
    """Leave the compiler's options out of an inline schema: the gateway chooses them."""
    return {key: value for key, value in schema.items() if key != "x-guidance"} if isinstance(schema, dict) else schema


def _find_problem(grammar: str, is_tried: bool = False) -> str | None:
    """Return what is wrong with a grammar, if anything. `is_tried`: the first mask is computed too.

    Schemas need no trial: their patterns and recursions have been checked, and a trial takes ten times as long.
    """
    if len(grammar) > MAX_GRAMMAR_CHARS:
        return f"its grammar has {len(grammar)} characters; at most {MAX_GRAMMAR_CHARS} are allowed"
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    if is_error:
        return _first_line(messages[0])
    if not is_tried:
        return None
    matcher = LLMatcher(_BYTES, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error() and (message := _first_line(matcher.get_error())) != _NO_TOKEN:
        return message
    return "no answer can match" if matcher.is_stopped() and not matcher.is_accepting() else None


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip(" .:")[:_MAX_REASON]


def _find_culprit(checked: CheckedSchema, until: float) -> tuple[str, str] | None:
    """Return the pointer of the smallest inner schema that fails alone, and the compiler's message about it.

    The search ends at `until`, with what it has. None: the schema does not fail alone.
    """
    definitions = checked.schema.get("$defs", {})
    part: Any = checked.schema
    if (problem := _try_alone(part, definitions, until)) is None:
        return None
    while True:
        tried = ((inner, _try_alone(inner, definitions, until)) for inner in _inner_schemas(part))
        failing = next(((inner, message) for inner, message in tried if message is not None), None)
        if failing is None:
            return checked.pointer(part), problem
        part, problem = failing


def _inner_schemas(part: dict[str, Any]) -> list[dict[str, Any]]:
    schemas: list[Any] = []
    for key, value in part.items():
        match key:
            case "$defs" | "properties" | "patternProperties":
                schemas.extend(value.values())
            case "allOf" | "anyOf" | "prefixItems":
                schemas.extend(value)
            case "items" | "additionalProperties":
                schemas.append(value)
    return [schema for schema in schemas if isinstance(schema, dict)]


def _try_alone(part: dict[str, Any], definitions: dict[str, Any], until: float) -> str | None:
    """Return the compiler's objection to `part` alone; None: it has none, or time is up."""
    if time.thread_time() > until:
        return None
    return _find_problem(json_grammar(part | ({"$defs": definitions} if definitions else {})))
