"""What an answer must look like, as it goes to the process that makes a grammar of it."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from baton_gateway.structured_outputs.format_errors import refused
from baton_gateway.structured_outputs.lark import MAX_BLANKS
from baton_gateway.structured_outputs.object_rules import MemberForm
from baton_wire.messages.values import Grammar

MAX_DEFINITION_BYTES = 64 << 10
MAX_CHOICES = 1_024
MAX_COMPOSED_BYTES = 256 << 10

_encode = msgspec.json.Encoder().encode


class ShapeKind(enum.StrEnum):
    """Who wrote what kind of definition."""

    JSON = "json"
    """One schema, the client's."""
    REGEX = "regex"
    """The whole answer matches the client's expression."""
    CHOICE = "choice"
    """One of the client's texts."""
    LARK = "lark"
    """The client's grammar, of text alone."""
    COMPOSED = "composed"
    """The gateway's own grammar; each schema is a rule of the given name in it."""


class NamedSchema(msgspec.Struct, frozen=True):
    """A client's JSON Schema, not yet looked into."""

    field: str
    """What errors name."""
    definition: msgspec.Raw
    is_strict: bool = False
    """A `format` that is not known is refused, and else says nothing."""
    rule: str = ""
    """Its name in a composed grammar."""
    members: MemberForm | None = None
    """How the object is written where that is not JSON."""


class OutputFormat(msgspec.Struct, frozen=True):
    """A definition within its limits of size, otherwise unread."""

    kind: ShapeKind
    field: str
    source: str = ""
    """The expression or the grammar."""
    choices: tuple[str, ...] = ()
    schemas: tuple[NamedSchema, ...] = ()
    marks: tuple[tuple[str, int], ...] = ()
    """Texts in a composed grammar that are one special token each, with its id."""

    def grammar(self, definition: str) -> Grammar:
        """`definition`, made of this shape, with what is counted beside it."""
        return Grammar(definition, MAX_BLANKS if self.kind is ShapeKind.JSON else None)

    def encoded(self) -> bytes:
        return _encode(self)

    @property
    def key(self) -> bytes:
        """Equal for equal shapes."""
        return hashlib.blake2b(self.encoded(), digest_size=16).digest()


class ShapeAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What becomes of a shape: a grammar's definition, or what the client is told. A shape may have two: an early one,
    and the one that counts."""

    definition: str | None
    param: str | None = None
    message: str = ""
    code: str = ""
    is_early: bool = False
    """The compiler has not looked at the definition yet, and another answer follows."""


def named_schema(
    schema: Any, field: str, is_strict: bool = False, rule: str = "", members: MemberForm | None = None
) -> NamedSchema:
    """Raises RefusedError for a schema that is too long."""
    definition = _encode(schema)
    if len(definition) > MAX_DEFINITION_BYTES:
        raise refused(field, "", f"it has {len(definition)} bytes; at most {MAX_DEFINITION_BYTES} are allowed")
    return NamedSchema(field, msgspec.Raw(definition), is_strict, rule, members)


def json_shape(schema: Any, field: str, is_strict: bool = False) -> OutputFormat:
    """Raises RefusedError for a schema that is too long."""
    return OutputFormat(ShapeKind.JSON, field, schemas=(named_schema(schema, field, is_strict),))


def text_shape(kind: ShapeKind, source: str, field: str) -> OutputFormat:
    """An expression or a client's grammar. Raises RefusedError for an empty one, and one that is too long."""
    size = len(source.encode())
    if not 1 <= size <= MAX_DEFINITION_BYTES:
        raise refused(field, "", f"it has {size} bytes; 1 to {MAX_DEFINITION_BYTES} are allowed")
    return OutputFormat(kind, field, source)


def choice_shape(choices: Sequence[str], field: str) -> OutputFormat:
    """Raises RefusedError for too many choices, empty ones and long ones."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise refused(field, "", f"it has {len(choices)} choices; 1 to {MAX_CHOICES} are allowed")
    if sum(len(choice.encode()) for choice in choices) > MAX_DEFINITION_BYTES:
        raise refused(field, "", f"its choices have more than {MAX_DEFINITION_BYTES} bytes together")
    for place, choice in enumerate(choices):
        if not choice:
            raise refused(f"{field}[{place}]", "", "a choice must not be empty")
    return OutputFormat(ShapeKind.CHOICE, field, choices=tuple(dict.fromkeys(choices)))


def composed_shape(
    lark: str, schemas: Sequence[NamedSchema], field: str, marks: tuple[tuple[str, int], ...] = ()
) -> OutputFormat:
    """The gateway's own grammar around clients' schemas: rule `start` in `lark` leads to the schemas' rules.

    `lark` is trusted: whatever of a client stands in it went through `literal`. Raises RefusedError for what is too
    long together.
    """
    size = len(lark.encode()) + sum(len(bytes(schema.definition)) for schema in schemas)
    if size > MAX_COMPOSED_BYTES:
        raise refused(field, "", f"it has {size} bytes; at most {MAX_COMPOSED_BYTES} are allowed")
    return OutputFormat(ShapeKind.COMPOSED, field, lark, schemas=tuple(schemas), marks=marks)
