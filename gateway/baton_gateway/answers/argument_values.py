"""Values of arguments that a model writes without types, between tags: the schema decides what a text means. Pure.

Model and client know the schema, so `12345` is a string where the schema allows strings and no numbers. A schema that
allows no strings turns Python's `True` and `None` into JSON. A text that is nothing of this stays a string.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.answers.python_literals import translate_literal
from baton_gateway.structured_outputs.schema_keywords import TYPES
from baton_gateway.structured_outputs.text_schema import TextSchema, read_text_schema, resolve_reference

_MAX_DEPTH = 32
_MAX_PARTS = 256
_ALL = frozenset(TYPES)


@dataclass(frozen=True, slots=True)
class ArgumentSchema:
    """The schema of one argument, and the schema of all arguments, where its references lead."""

    schema: Any
    root: Any

    def as_text(self) -> TextSchema | None:
        """Return the schema of texts that this is; None: other values may be valid."""
        return read_text_schema(self.schema, self.root)

    def to_json(self, raw: str) -> str:
        """Return the JSON that a model means by this text."""
        allowed = _Reader(self.root).read(self.schema, 0)
        try:
            value = msgspec.json.decode(raw.strip())
            is_json = True
        except (msgspec.DecodeError, RecursionError):
            value, is_json = None, False
        if is_json and (allowed.includes(value) or not allowed.takes_text(raw)):
            return raw.strip()
        if not allowed.takes_text(raw) and (translated := translate_literal(raw)) is not None:
            return translated
        return json.dumps(raw, ensure_ascii=False)


def find_argument(parameters: Mapping[str, Any] | None, name: str) -> ArgumentSchema:
    """Return the schema of an argument. A name that is not declared has that of all other names."""
    declared: list[Any] = []
    others: list[Any] = []
    for part in _object_parts(parameters):
        properties, patterns = part.get("properties"), part.get("patternProperties")
        if isinstance(properties, Mapping) and name in properties:
            declared.append(properties[name])
        if isinstance(patterns, Mapping):
            others += patterns.values()
        if isinstance(part.get("additionalProperties"), Mapping):
            others.append(part["additionalProperties"])
    schemas = declared or others
    return ArgumentSchema({} if not schemas else schemas[0] if len(schemas) == 1 else {"anyOf": schemas}, parameters)


def _object_parts(parameters: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that together describe the arguments: the root, what it refers to, and its cases."""
    queue: list[Any] = [parameters]
    for _ in range(_MAX_PARTS):
        if not queue:
            return
        part = queue.pop(0)
        if not isinstance(part, Mapping):
            continue
        yield part
        queue.append(resolve_reference(part.get("$ref"), parameters))
        for key in ("allOf", "anyOf", "oneOf"):
            if isinstance(part.get(key), list):
                queue += part[key]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """The types that may be valid, and the only values if a schema lists them."""

    types: frozenset[str] = _ALL
    values: tuple[Any, ...] | None = None

    def includes(self, value: Any) -> bool:
        if not _types_of(value) & self.types:
            return False
        return self.values is None or any(_same(value, allowed) for allowed in self.values)

    def takes_text(self, text: str) -> bool:
        """Return True if a string may be valid: this one, where the values are listed."""
        return self.includes(text)

    def both(self, other: _Allowed) -> _Allowed:
        values = self.values if other.values is None else other.values
        if self.values is not None and other.values is not None:
            values = tuple(value for value in self.values if any(_same(value, one) for one in other.values))
        return _Allowed(self.types & other.types, values)

    def either(self, other: _Allowed) -> _Allowed:
        """Return what one of both allows, or more: pairs of types and values are not kept together."""
        values = None if self.values is None or other.values is None else self.values + other.values
        return _Allowed(self.types | other.types, values)


class _Reader:
    """Reads what a schema allows; beyond a depth or number of parts anything may be valid."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts_left = _MAX_PARTS

    def read(self, schema: Any, depth: int) -> _Allowed:
        self._parts_left -= 1
        if schema is False:
            return _Allowed(frozenset())
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._parts_left < 0:
            return _Allowed()
        allowed = _own_types(schema)
        if "$ref" in schema:
            allowed = allowed.both(self.read(resolve_reference(schema["$ref"], self._root), depth + 1))
        for case in _cases(schema, "allOf"):
            allowed = allowed.both(self.read(case, depth + 1))
        for key in ("anyOf", "oneOf"):
            if cases := _cases(schema, key):
                either = self.read(cases[0], depth + 1)
                for case in cases[1:]:
                    either = either.either(self.read(case, depth + 1))
                allowed = allowed.both(either)
        return allowed


def _cases(schema: Mapping[str, Any], key: str) -> list[Any]:
    cases = schema.get(key)
    return cases if isinstance(cases, list) else []


def _own_types(schema: Mapping[str, Any]) -> _Allowed:
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    types = frozenset(kind for kind in kinds if isinstance(kind, str)) if isinstance(kinds, list) else _ALL
    types |= {"integer"} if "number" in types else set()
    types |= {"null"} if schema.get("nullable") is True else set()
    if "const" in schema:
        return _Allowed(types, (schema["const"],))
    return _Allowed(types, tuple(schema["enum"]) if isinstance(schema.get("enum"), list) else None)


def _types_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset(("null",))
        case bool():
            return frozenset(("boolean",))
        case int():
            return frozenset(("integer",))
        case float():
            return frozenset(("integer", "number") if value.is_integer() else ("number",))
        case str():
            return frozenset(("string",))
        case list():
            return frozenset(("array",))
    return frozenset(("object",))


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
