"""Whether two schemas can have no valid value in common, as far as that can be seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from baton_gateway.structured_outputs.schema_keywords import TYPES

_MAX_STEPS = 8
"""References and properties that are followed."""
_MAX_PARTS = 16
Definitions = Mapping[str, Any]


def are_disjoint(one: Any, other: Any, definitions: Definitions) -> bool:
    """True only if it is certain. `definitions` by the names that `$ref` has after `#/$defs/`."""
    return _disjoint(one, other, definitions, _MAX_STEPS)


def _disjoint(one: Any, other: Any, definitions: Definitions, steps: int) -> bool:
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or steps == 0:
        return False
    parts = list(islice(_parts(one, definitions, steps), _MAX_PARTS))
    others = list(islice(_parts(other, definitions, steps), _MAX_PARTS))
    return any(_differ(part, each, definitions, steps) for part in parts for each in others)


def _parts(schema: dict[str, Any], definitions: Definitions, steps: int) -> Iterator[dict[str, Any]]:
    """All of these hold for a valid value."""
    yield schema
    if steps == 0:
        return
    inner = list(schema.get("allOf", ()))
    if "$ref" in schema:
        inner.append(definitions.get(schema["$ref"].removeprefix("#/$defs/")))
    for each in inner:
        if isinstance(each, dict):
            yield from _parts(each, definitions, steps - 1)


def _differ(one: dict[str, Any], other: dict[str, Any], definitions: Definitions, steps: int) -> bool:
    if not _types(one) & _types(other):
        return True
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not any(_equal(value, each) for value in values for each in others)
    if _types(one) & _types(other) != {"object"}:
        return False
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    shared = [name for name in one.get("required", ()) if name in set(other.get("required", ()))]
    return any(_disjoint(mine.get(name), theirs.get(name), definitions, steps - 1) for name in shared)


def _types(schema: dict[str, Any]) -> set[str]:
    if (values := _values(schema)) is not None:
        return {_type(value) for value in values}
    types = schema.get("type", TYPES)
    found = {types} if isinstance(types, str) else set(types)
    return found | {"integer"} if "number" in found else found


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
    """As JSON has it: `true` is not 1."""
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
