"""Decides that two schemas have no valid value in common, where that can be shown: what `oneOf` needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from baton_gateway.structured_outputs.schema_keywords import TYPES

_MAX_STEPS = 8
"""The most references and properties that are followed in depth."""
_MAX_PARTS = 16
Definitions = Mapping[str, Any]


def are_disjoint(one: Any, other: Any, definitions: Definitions) -> bool:
    """Return True only if it is certain. `definitions`: by the names that follow `#/$defs/` in a `$ref`."""
    return _disjoint(one, other, definitions, _MAX_STEPS)


def _disjoint(one: Any, other: Any, definitions: Definitions, steps: int) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or steps == 0:
        return False
    parts = list(islice(_parts(one, definitions, steps), _MAX_PARTS))
    others = list(islice(_parts(other, definitions, steps), _MAX_PARTS))
    return any(_differ(part, other_part, definitions, steps) for part in parts for other_part in others)


def _parts(schema: dict[str, Any], definitions: Definitions, steps: int) -> Iterator[dict[str, Any]]:
    """Yield schemas that every valid value satisfies."""
    yield schema
    if steps == 0:
        return
    inner = list(schema.get("allOf", ()))
    if "$ref" in schema:
        inner.append(definitions.get(schema["$ref"].removeprefix("#/$defs/")))
    for subschema in inner:
        if isinstance(subschema, dict):
            yield from _parts(subschema, definitions, steps - 1)


def _differ(one: dict[str, Any], other: dict[str, Any], definitions: Definitions, steps: int) -> bool:
    if not _types(one) & _types(other):
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(_equal(value, other_value) for value in values for other_value in others)
    if _types(one) & _types(other) != {"object"}:
        return False
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    shared = [name for name in one.get("required", ()) if name in set(other.get("required", ()))]
    return any(_disjoint(mine.get(name), theirs.get(name), definitions, steps - 1) for name in shared)


def _types(schema: dict[str, Any]) -> set[str]:
    if (values := _values(schema)) is not None:
        return {_type(value) for value in values}
    types = schema.get("type", TYPES)
    names = {types} if isinstance(types, str) else set(types)
    return names | {"integer"} if "number" in names else names


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values: list[Any] | None = schema.get("enum")
    return values


def _equal(one: Any, other: Any) -> bool:
    """Compare as JSON does: `true` is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
