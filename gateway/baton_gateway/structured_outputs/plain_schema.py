"""Plain schemas: the compiler is certain to accept them, at a known cost, so no request waits for it. Pure.

Most schemas are plain: objects of named properties, lists, texts, numbers and enumerations. A worker may begin with
their provisional grammar while the compiler still checks it: see `format_compiler`. Any other schema waits for the
check.
"""

from __future__ import annotations

from typing import Any

MAX_PARTS = 1_000
MAX_ITEMS = 100
MAX_LENGTH = 4_096
MAX_INTEGER = 10**9
MAX_CASES = 64
"""The most cases of an `anyOf`."""

_ENUM = {"type", "enum"}
_CONST = {"type", "const"}
_OBJECT = {"type", "properties", "required", "additionalProperties"}
_ARRAY = {"type", "items", "minItems", "maxItems"}
_STRING = {"type", "minLength", "maxLength"}
_INTEGER = {"type", "minimum", "maximum"}
"""The keywords of a plain part. `json_schema` has checked that no minimum count exceeds its maximum."""

_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


def is_plain(schema: dict[str, Any]) -> bool:
    """Return True if a schema from `json_schema.check_schema` is plain."""
    definitions = schema.get("$defs", {})
    parts: list[Any] = [{key: value for key, value in schema.items() if key != "$defs"}, *definitions.values()]
    num_parts = 0
    while parts:
        part = parts.pop()
        num_parts += 1
        if part is False or num_parts > MAX_PARTS:
            return False
        if part is not True and part and not _is_plain_part(part, parts):
            return False
    return True


def _is_plain_part(part: dict[str, Any], inner: list[Any]) -> bool:
    """Return True if a part is plain, apart from the schemas within it, which are added to `inner`."""
    kind = part.get("type")
    if "enum" in part:
        return part.keys() <= _ENUM and _have_type(part["enum"], kind)
    if "const" in part:
        return part.keys() <= _CONST and _have_type([part["const"]], kind)
    if "anyOf" in part:
        cases = part["anyOf"]
        inner += cases
        return len(part) == 1 and len(cases) <= MAX_CASES
    if kind == "object":
        properties, others = part.get("properties", {}), part.get("additionalProperties", True)
        inner += properties.values()
        if others is not False:
            inner.append(others)
        return part.keys() <= _OBJECT and all(name in properties for name in part.get("required", ()))
    if kind == "array":
        inner.append(part.get("items", True))
        return part.keys() <= _ARRAY and part.get("minItems", 0) <= MAX_ITEMS >= part.get("maxItems", 0)
    if kind == "string":
        return part.keys() <= _STRING and part.get("minLength", 0) <= MAX_LENGTH >= part.get("maxLength", 0)
    if kind == "integer":
        low, high = part.get("minimum", -MAX_INTEGER), part.get("maximum", MAX_INTEGER)
        return part.keys() <= _INTEGER and _is_small_integer(low) and _is_small_integer(high) and low <= high
    return len(part) == 1 and ("$ref" in part or kind in ("number", "boolean", "null"))


def _have_type(values: list[Any], kind: Any) -> bool:
    """Return True for texts, small integers, booleans and null that have the named type, if one is named."""
    if not all(isinstance(value, str | bool | None) or _is_small_integer(value) for value in values):
        return False
    if kind is None:
        return True
    if not isinstance(kind, str) or kind not in _PYTHON_TYPES:
        return False
    return all(type(value) in _PYTHON_TYPES[kind] for value in values)


def _is_small_integer(value: Any) -> bool:
    return type(value) is int and abs(value) <= MAX_INTEGER
