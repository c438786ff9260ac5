"""The format that an answer must follow, as the gateway hands it to the process that compiles it."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.errors import unsupported
from baton_gateway.structured_outputs.format_errors import schema_error
from baton_gateway.structured_outputs.json_schema import Enforcement
from baton_gateway.structured_outputs.lark import MAX_BLANKS, literal, pattern_beginning, pattern_term
from baton_gateway.structured_outputs.object_rules import MemberSyntax
from baton_gateway.structured_outputs.pattern import PatternError, translate_pattern
from baton_wire.messages.values import Grammar

MAX_DEFINITION_BYTES = 64 << 10
MAX_CHOICES = 1_024
MAX_COMPOSED_BYTES = 256 << 10

_encode = msgspec.json.Encoder().encode


class FormatKind(enum.StrEnum):
    """Kinds of definitions, by their language and author."""

    JSON = "json"
    """One JSON Schema of the client's."""
    REGEX = "regex"
    """A regular expression of the client's, which the whole answer must match."""
    CHOICE = "choice"
    """A list of the client's texts."""
    LARK = "lark"
    """A grammar of the client's, over text alone."""
    COMPOSED = "composed"
    """The gateway's own grammar, in which each schema is a rule."""


class NamedSchema(msgspec.Struct, frozen=True):
    """A client's JSON Schema, not parsed yet."""

    field: str
    """The request's field that errors name."""
    definition: msgspec.Raw
    demand: int = 1
    """How much of it must be enforced: see `json_schema.Enforcement`."""
    rule: str = ""
    """The name of its rule in a composed grammar."""
    members: MemberSyntax | None = None
    """How the object is written; None: as JSON."""
    called: str = ""
    """The tool of a call that is one JSON object of its name and of `parameters`, which follow the schema."""


class OutputFormat(msgspec.Struct, frozen=True):
    """A definition within its limits of size, otherwise not checked yet."""

    kind: FormatKind
    field: str
    source: str = ""
    """The expression or the grammar."""
    choices: tuple[str, ...] = ()
    schemas: tuple[NamedSchema, ...] = ()
    tokens: tuple[tuple[str, int], ...] = ()
    """Texts in a composed grammar that are one special token each, with the token's id."""

    def grammar(self, compiled: str) -> Grammar:
        """Return the grammar compiled from this format, with the bound on blanks that matchers count themselves."""
        return Grammar(compiled, MAX_BLANKS if self.kind is FormatKind.JSON else None)

    def encoded(self) -> bytes:
        return _encode(self)

    @property
    def key(self) -> bytes:
        """A digest that is equal for equal formats."""
        return hashlib.blake2b(self.encoded(), digest_size=16).digest()


class CompileResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The result of compiling a format: a grammar, or the refusal that its client gets.

    A plain schema has two results: a provisional one, then the one that counts.
    """

    grammar: str | None
    """In llguidance's own form; None: refused."""
    param: str | None = None
    message: str = ""
    code: str = ""
    is_provisional: bool = False
    """True if the compiler has still to check the grammar; another result follows."""
    ignored: tuple[str, ...] = ()
    """Places of keywords that the grammar does not enforce."""


def named_schema(
    schema: Any, field: str, demand: int = Enforcement.USUAL, rule: str = "", members: MemberSyntax | None = None
) -> NamedSchema:
    """Build a named schema. Raises RefusedError for a schema that is too long."""
    definition = _encode(schema)
    if len(definition) > MAX_DEFINITION_BYTES:
        raise schema_error(field, "", f"it has {len(definition)} bytes; at most {MAX_DEFINITION_BYTES} are allowed")
    return NamedSchema(field, msgspec.Raw(definition), int(demand), rule, members)


def json_format(schema: Any, field: str, is_strict: bool = False) -> OutputFormat:
    """Build the format of a JSON Schema. Raises RefusedError for a schema that is too long."""
    demand = Enforcement.STRICT if is_strict else Enforcement.USUAL
    return OutputFormat(FormatKind.JSON, field, schemas=(named_schema(schema, field, demand),))


def text_format(kind: FormatKind, source: str, field: str) -> OutputFormat:
    """Build the format of an expression or a client's grammar. Raises RefusedError if it is empty or too long."""
    size = len(source.encode())
    if not 1 <= size <= MAX_DEFINITION_BYTES:
        raise schema_error(field, "", f"it has {size} bytes; 1 to {MAX_DEFINITION_BYTES} are allowed")
    return OutputFormat(kind, field, source)


def choice_format(choices: Sequence[str], field: str) -> OutputFormat:
    """Build the format of a list of texts. Raises RefusedError for too many choices, empty ones and long ones."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise schema_error(field, "", f"it has {len(choices)} choices; 1 to {MAX_CHOICES} are allowed")
    if sum(len(choice.encode()) for choice in choices) > MAX_DEFINITION_BYTES:
        raise schema_error(field, "", f"its choices have more than {MAX_DEFINITION_BYTES} bytes together")
    for index, choice in enumerate(choices):
        if not choice:
            raise schema_error(f"{field}[{index}]", "", "a choice must not be empty")
    return OutputFormat(FormatKind.CHOICE, field, choices=tuple(dict.fromkeys(choices)))


def composed_format(
    lark: str, schemas: Sequence[NamedSchema], field: str, tokens: tuple[tuple[str, int], ...] = ()
) -> OutputFormat:
    """Build the format of the gateway's own grammar around clients' schemas: `start` in `lark` leads to their rules.

    `lark` is trusted: any client text in it went through `literal`. Raises RefusedError if everything together is too
    long.
    """
    size = len(lark.encode()) + sum(len(bytes(schema.definition)) for schema in schemas)
    if size > MAX_COMPOSED_BYTES:
        raise schema_error(field, "", f"it has {size} bytes; at most {MAX_COMPOSED_BYTES} are allowed")
    return OutputFormat(FormatKind.COMPOSED, field, lark, schemas=tuple(schemas), tokens=tokens)


class AnswerRules(msgspec.Struct, frozen=True):
    """The rule `answer` of a composed grammar: lines of Lark, and schemas that define it."""

    rules: tuple[str, ...] = ()
    schemas: tuple[NamedSchema, ...] = ()


def write_answer(answer: OutputFormat, mark: str) -> AnswerRules:
    """Write a client's format as the rule `answer`. `mark`: a text that an expression's match must not begin with.

    Raises RefusedError for a definition that cannot be a part of a larger grammar.
    """
    match answer.kind:
        case FormatKind.JSON:
            [schema] = answer.schemas
            return AnswerRules(schemas=(msgspec.structs.replace(schema, rule="answer"),))
        case FormatKind.CHOICE:
            return AnswerRules(("answer: " + " | ".join(map(literal, answer.choices)),))
        case FormatKind.REGEX:
            try:
                pattern = translate_pattern(answer.source, expands_classes=True)
            except PatternError as error:
                raise schema_error(answer.field, "", str(error)) from error
            excluded = f" & ~{pattern_beginning(mark)}" if mark else ""
            return AnswerRules(("answer: ANSWER", f"ANSWER: {pattern_term(pattern)}{excluded}"))
        case _:
            raise unsupported(answer.field, "a grammar excludes tools that may be called; 'tool_choice' may be 'none'")
