"""Structural schemas as an API server applies them: unknown fields pruned, nulls and defaults resolved, bounds checked.

The subset that Baton's own definitions use. CEL rules are not evaluated here: the reader of manifests, which a real
server is compared with in `e2e/test_schema.py`, stands in for those of LLMDeployments.
"""

from __future__ import annotations

import re
from typing import Any

from baton_control.errors import FieldProblem

Json = dict[str, Any]


def prune(value: Any, schema: Json) -> Any:
    """Without the fields that the schema does not know."""
    if isinstance(value, dict):
        properties, rest = schema.get("properties"), schema.get("additionalProperties")
        if properties is not None:
            return {name: prune(each, properties[name]) for name, each in value.items() if name in properties}
        if isinstance(rest, dict):
            return {name: prune(each, rest) for name, each in value.items()}
        return value
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune(each, schema["items"]) for each in value]
    return value


def fill(value: Any, schema: Json) -> Any:
    """With defaults; a null where the schema has a default counts as absent, and elsewhere is dropped."""
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        found = {}
        for name, each in value.items():
            if each is None and name in properties and not properties[name].get("nullable"):
                continue
            inner = properties.get(name, rest if isinstance(rest, dict) else {})
            found[name] = fill(each, inner)
        for name, inner in properties.items():
            if name not in found and "default" in inner:
                found[name] = fill(inner["default"], inner)
        return found
    if isinstance(value, list):
        return [fill(each, schema.get("items", {})) for each in value]
    return value


def problems(value: Any, schema: Json, path: str = "") -> list[FieldProblem]:
    """What the schema does not allow."""
    kind = schema.get("type")
    if value is None:
        return [FieldProblem(path, "must not be null")] if kind and not schema.get("nullable") else []
    if not _is(value, kind):
        return [FieldProblem(path, f"must be of type {kind}")]
    found = [FieldProblem(path, text) for text in _bounds(value, schema)]
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        found += [
            FieldProblem(_join(path, name), "Required value")
            for name in schema.get("required", ())
            if name not in value
        ]
        for name, each in value.items():
            inner = properties.get(name, rest)
            if isinstance(inner, dict):
                found += problems(each, inner, _join(path, name))
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, each in enumerate(value):
            found += problems(each, schema["items"], f"{path}[{place}]")
    return found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _is(value: Any, kind: str | None) -> bool:
    if kind is None:
        return True
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if kind == "number":
        return isinstance(value, int | float)
    return isinstance(value, {"string": str, "object": dict, "array": list, "boolean": bool}[kind])


def _bounds(value: Any, schema: Json) -> list[str]:
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"must be one of {schema['enum']}")
    if isinstance(value, str):
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            found.append(f"must match {schema['pattern']}")
        found += _size(len(value), schema, "Length")
    elif isinstance(value, list):
        found += _size(len(value), schema, "Items")
    elif isinstance(value, dict):
        found += _size(len(value), schema, "Properties")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        found += [] if low <= value <= high else [f"must be from {low} to {high}"]
    return found


def _size(size: int, schema: Json, what: str) -> list[str]:
    if not schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size):
        return [f"may have at most {schema.get(f'max{what}')} {what.lower()}"]
    return []
