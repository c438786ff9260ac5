"""Schemas of which it is clear, without asking the compiler, that it takes them and what that costs. Pure.

Most schemas are such: objects of named properties, lists, texts, numbers and enumerations. A worker may begin with
their grammar while the compiler still judges it: see `shape_compiler`. What is combined, matched or counted in any
other way waits for the judgement.
"""

from __future__ import annotations

from typing import Any

MAX_PARTS = 1_000
MAX_ITEMS = 100
MAX_LENGTH = 4_096
MAX_INTEGER = 10**9
MAX_CASES = 64
"""Of an `anyOf`."""

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def is_plain(schema: dict[str, Any]) -> bool:
    """Of a schema that came out of `json_schema.check_schema`."""
    definitions = schema.get("$defs", {})
    parts: list[Any] = [{key: value for key, value in schema.items() if key != "$defs"}, *definitions.values()]
    seen = 0
    while parts:
        part = parts.pop()
        seen += 1
        if part is False or seen > MAX_PARTS:
            return False
        if part is not True and part and not _is_plain_part(part, parts):
            return False
    return True


def _is_plain_part(part: dict[str, Any], inner: list[Any]) -> bool:
    """Without the schemas within it, which are added to `inner`."""
    keys = part.keys()
    match part:
        case {"$ref": _}:
            return len(keys) == 1
        case {"anyOf": cases}:
            inner += cases
            return len(keys) == 1 and len(cases) <= MAX_CASES
        case {"type": "object"}:
            properties, others = part.get("properties", {}), part.get("additionalProperties", True)
            inner += properties.values()
            if others is not False:
                inner.append(others)
            has_required = properties.keys() >= set(part.get("required", ()))
            return has_required and keys <= {"type", "properties", "required", "additionalProperties"}
        case {"type": "array"}:
            inner.append(part.get("items", True))
            return keys <= {"type", "items", "minItems", "maxItems"} and _are_small(part, MAX_ITEMS, "Items")
        case {"enum": values}:
            return keys <= {"type", "enum"} and _are_of(values, part.get("type"))
        case {"const": value}:
            return keys <= {"type", "const"} and _are_of([value], part.get("type"))
        case {"type": "string"}:
            return keys <= {"type", "minLength", "maxLength"} and _are_small(part, MAX_LENGTH, "Length")
        case {"type": "integer"}:
            bounds = [part[key] for key in ("minimum", "maximum") if key in keys]
            is_known = keys <= {"type", "minimum", "maximum"}
            return is_known and bounds == sorted(bounds) and all(_is_small_integer(bound) for bound in bounds)
        case {"type": "number" | "boolean" | "null"}:
            return len(keys) == 1
    return False


def _are_small(part: dict[str, Any], most: int, what: str) -> bool:
    """Counts that are there; `json_schema` has seen to it that the least is not above the most."""
    return all(part.get(f"{key}{what}", 0) <= most for key in ("min", "max"))


def _are_of(values: list[Any], kind: Any) -> bool:
    """Texts, small integers, booleans and null; each of the type, if one is named."""
    if not all(isinstance(value, str | bool | None) or _is_small_integer(value) for value in values):
        return False
    if kind is None:
        return True
    if not isinstance(kind, str) or kind not in _PYTHON_TYPES:
        return False
    return all(type(value) in _PYTHON_TYPES[kind] for value in values)


def _is_small_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= MAX_INTEGER
