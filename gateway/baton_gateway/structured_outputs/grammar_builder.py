"""A shape to a grammar's definition in the compiler's own form, or a refusal. Runs in a process apart: see
`format_compiler_main`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from baton_gateway.errors import RefusedError
from baton_gateway.structured_outputs.format_errors import refused
from baton_gateway.structured_outputs.json_schema import CheckedSchema, check_schema
from baton_gateway.structured_outputs.lark import check_lark, json_options, json_term, literal
from baton_gateway.structured_outputs.object_rules import member_rules
from baton_gateway.structured_outputs.output_format import OutputFormat, ShapeAnswer, ShapeKind
from baton_gateway.structured_outputs.pattern import PatternError, common_pattern
from baton_gateway.structured_outputs.plain_schema import is_plain
from baton_wire.messages.values import MAX_GRAMMAR_CHARS

ANSWER_OPTIONS = json_options(indentation="*")
"""Of an answer that is JSON and nothing else. Its blanks are counted beside the grammar: see `OutputFormat.grammar`."""
LIMITS = LLParserLimits(verbose_errors=False)
_BYTES = LLTokenizer("byte")
"""A vocabulary of the 256 bytes: what can be followed with it is followed with any other."""
_encode = msgspec.json.Encoder().encode
_BLAME_S = 0.02
_MAX_REASON = 200
_NO_TOKEN = "NoExtensionBias"
"""The compiler's word for a grammar that allows no first token."""


def answers_of(shape: OutputFormat) -> Iterator[ShapeAnswer]:
    """One, or two: of a plain schema the definition is told before the compiler has looked at it."""
    try:
        for definition, is_early in _definitions(shape):
            yield ShapeAnswer(definition, is_early=is_early)
    except RefusedError as refusal:
        problem = refusal.problem
        yield ShapeAnswer(None, problem.param, problem.message, problem.code or "")


def definition_of(shape: OutputFormat) -> str:
    """Raises RefusedError that names the place in the client's definition."""
    *_, (definition, _) = _definitions(shape)
    return definition


def json_definition(schema: dict[str, Any]) -> str:
    """As `LLMatcher.grammar_from_json_schema` with our options, which takes thirty times as long."""
    grammar = {"name": "json_schema", "json_schema": schema | {"x-guidance": ANSWER_OPTIONS}, "lark_grammar": None}
    return _encode({"grammars": [grammar], "max_tokens": None}).decode()


def _definitions(shape: OutputFormat) -> Iterator[tuple[str, bool]]:
    """The definition, and whether the compiler has still to look at it: then it comes once more."""
    match shape.kind:
        case ShapeKind.JSON:
            yield from _json(shape)
            return
        case ShapeKind.REGEX:
            definition = LLMatcher.grammar_from_regex(_pattern(shape, shape.source))
        case ShapeKind.CHOICE:
            definition = _lark("start: " + " | ".join(map(literal, shape.choices)))
        case ShapeKind.LARK:
            _client_lark(shape)
            definition = _lark(shape.source)
        case ShapeKind.COMPOSED:
            rules = [line for place in range(len(shape.schemas)) for line in _rules(shape, place)]
            definition = _lark("\n".join((shape.source, *rules)))
    if (problem := _problem(definition, is_tried=shape.kind is not ShapeKind.COMPOSED)) is not None:
        until = time.thread_time() + _BLAME_S
        for place, named in enumerate(shape.schemas):
            if (found := _blamed(_checked(shape, place), until)) is not None:
                raise refused(named.field, *found)
        raise refused(shape.field, "", problem)
    yield definition, False


def _json(shape: OutputFormat) -> Iterator[tuple[str, bool]]:
    checked = _checked(shape, 0)
    definition = json_definition(checked.schema)
    if len(definition) <= MAX_GRAMMAR_CHARS and is_plain(checked.schema):
        yield definition, True
    if (problem := _problem(definition)) is not None:
        raise refused(shape.field, *(_blamed(checked, time.thread_time() + _BLAME_S) or ("", problem)))
    yield definition, False


def _lark(source: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": source}]})


def _rules(shape: OutputFormat, place: int) -> list[str]:
    named, schema = shape.schemas[place], _checked(shape, place).schema
    if named.members is None:
        return [f"{named.rule}: {json_term(schema)}"]
    return member_rules(named.rule, schema, named.members, dict(shape.marks))


def _checked(shape: OutputFormat, place: int) -> CheckedSchema:
    named = shape.schemas[place]
    return check_schema(msgspec.json.decode(named.definition), named.field, named.is_strict)


def _pattern(shape: OutputFormat, source: str) -> str:
    try:
        return common_pattern(source, spells_classes=True)
    except PatternError as error:
        raise refused(shape.field, "", str(error)) from error


def _client_lark(shape: OutputFormat) -> None:
    try:
        check_lark(shape.source)
    except PatternError as error:
        raise refused(shape.field, "", str(error)) from error


def _problem(definition: str, is_tried: bool = False) -> str | None:
    """What is wrong with a definition. `is_tried`: it is not only read, the first mask is made of it too. Schemas need
    not be tried: their expressions and recursions were looked at, and it takes ten times as long.
    """
    if len(definition) > MAX_GRAMMAR_CHARS:
        return f"its grammar has {len(definition)} characters; at most {MAX_GRAMMAR_CHARS} are allowed"
    is_error, messages = LLMatcher.validate_grammar_with_warnings(definition, limits=LIMITS)
    if is_error:
        return _first_line(messages[0])
    if not is_tried:
        return None
    matcher = LLMatcher(_BYTES, definition, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error() and (said := _first_line(matcher.get_error())) != _NO_TOKEN:
        return said
    return "no answer can match" if matcher.is_stopped() and not matcher.is_accepting() else None


def _first_line(text: str) -> str:
    return text.partition("\n")[0].strip(" .:")[:_MAX_REASON]


def _blamed(checked: CheckedSchema, until: float) -> tuple[str, str] | None:
    """The pointer of the smallest schema within that fails alone, as far as that is found in a moment, and what the
    compiler says of it. None: the schema does not fail alone."""
    definitions = checked.schema.get("$defs", {})
    part: Any = checked.schema
    if (problem := _fails(part, definitions, until)) is None:
        return None
    while True:
        failing = ((each, _fails(each, definitions, until)) for each in _inner(part, definitions))
        inner, its_problem = next(((each, said) for each, said in failing if said is not None), (None, ""))
        if inner is None:
            return checked.pointer(part), problem
        part, problem = inner, its_problem


def _inner(part: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[Any] = []
    for key, value in part.items():
        match key:
            case "$defs" | "properties" | "patternProperties":
                found.extend(value.values())
            case "allOf" | "anyOf" | "prefixItems":
                found.extend(value)
            case "items" | "additionalProperties":
                found.append(value)
    return [each for each in found if isinstance(each, dict)]


def _fails(part: dict[str, Any], definitions: dict[str, Any], until: float) -> str | None:
    """What the compiler says against `part`; None: nothing, or it is too late to ask."""
    if time.thread_time() > until:
        return None
    return _problem(json_definition(part | ({"$defs": definitions} if definitions else {})))
