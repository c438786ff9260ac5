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
            return {name: prune(item, properties[name]) for name, item in value.items() if name in properties}
        if isinstance(rest, dict):
            return {name: prune(item, rest) for name, item in value.items()}
        return value
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        return [prune(item, schema["items"]) for item in value]
    return value


def fill(value: Any, schema: Json) -> Any:
    """With defaults; a null where the schema has a default counts as absent, and elsewhere is dropped."""
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        filled = {}
        for name, item in value.items():
            if item is None and name in properties and not properties[name].get("nullable"):
                continue
            inner = properties.get(name, rest if isinstance(rest, dict) else {})
            filled[name] = fill(item, inner)
        for name, inner in properties.items():
            if name not in filled and "default" in inner:
                filled[name] = fill(inner["default"], inner)
        return filled
    if isinstance(value, list):
        return [fill(item, schema.get("items", {})) for item in value]
    return value


def problems(value: Any, schema: Json, path: str = "") -> list[FieldProblem]:
    """The problems of a value by its schema. Of CEL rules, those that refuse a field whatever its value."""
    kind = schema.get("type")
    if value is None:
        return [FieldProblem(path, "must not be null")] if kind and not schema.get("nullable") else []
    if schema.get("x-kubernetes-int-or-string") and not (_is(value, "integer") or isinstance(value, str)):
        return [FieldProblem(path, "must be of type integer,string")]
    if not _is(value, kind):
        return [FieldProblem(path, f"must be of type {kind}")]
    problems_found = [FieldProblem(path, text) for text in _bounds(value, schema)]
    rules = schema.get("x-kubernetes-validations", ())
    problems_found += [FieldProblem(path, rule["message"]) for rule in rules if rule["rule"] == "false"]
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
        problems_found += [
            FieldProblem(_join(path, name), "Required value")
            for name in schema.get("required", ())
            if name not in value
        ]
        for name, item in value.items():
            inner = properties.get(name, rest)
            if isinstance(inner, dict):
                problems_found += problems(item, inner, _join(path, name))
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, item in enumerate(value):
            problems_found += problems(item, schema["items"], f"{path}[{place}]")
    return problems_found


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
    texts = []
    if "enum" in schema and value not in schema["enum"]:
        texts.append(f"must be one of {schema['enum']}")
    if isinstance(value, str):
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            texts.append(f"must match {schema['pattern']}")
        texts += _size(len(value), schema, "Length")
    elif isinstance(value, list):
        texts += _size(len(value), schema, "Items")
    elif isinstance(value, dict):
        texts += _size(len(value), schema, "Properties")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        texts += [] if low <= value <= high else [f"must be from {low} to {high}"]
    return texts


def _size(size: int, schema: Json, what: str) -> list[str]:
    if not schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size):
        return [f"may have at most {schema.get(f'max{what}')} {what.lower()}"]
    return []
