"""Every keyword of JSON Schema, and whether it is enforced, an annotation, or refused. docs/structured.md lists them.

No keyword that restricts what is valid is ignored without a word: `json_schema.Enforcement` says which may be left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ANNOTATIONS = frozenset({
    "$schema", "$comment", "$anchor", "$dynamicAnchor", "$vocabulary", "$defs", "definitions", "title",
    "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "contentMediaType",
    "contentEncoding", "contentSchema", "discriminator", "id",
})  # fmt: skip
"""Annotations and containers of definitions. A definition is read where a reference leads to it. zod and Jackson write
`id` as a name; in draft 4 it was today's `$id`, and references by it are refused."""

ENFORCED = frozenset({
    "$ref", "type", "enum", "const", "allOf", "anyOf", "oneOf", "properties", "patternProperties",
    "additionalProperties", "required", "minProperties", "maxProperties", "items", "prefixItems", "additionalItems",
    "minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum",
    "exclusiveMaximum", "multipleOf", "uniqueItems", "nullable",
})  # fmt: skip
"""`uniqueItems` only where an item has few values. `nullable` is OpenAPI's."""

_NO_GRAMMAR = "no grammar can follow it"
REFUSED = {
    "not": _NO_GRAMMAR,
    "if": "write 'anyOf' of the cases",
    "then": "write 'anyOf' of the cases",
    "else": "write 'anyOf' of the cases",
    "contains": "write 'prefixItems' or 'items'",
    "minContains": "write 'prefixItems' or 'items'",
    "maxContains": "write 'prefixItems' or 'items'",
    "propertyNames": "write 'patternProperties' and 'additionalProperties'",
    "dependentRequired": "write 'anyOf' of the cases",
    "dependentSchemas": "write 'anyOf' of the cases",
    "dependencies": "write 'anyOf' of the cases",
    "unevaluatedProperties": "write 'additionalProperties' in each case",
    "unevaluatedItems": "write 'items' in each case",
    "$dynamicRef": "write '$ref'",
    "$recursiveRef": "write '$ref'",
    "$recursiveAnchor": "write '$ref'",
    "$id": "references are within one schema; only the outermost may have an '$id'",
}
"""Known keywords that cannot be enforced, and what to write instead."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

_YEAR = r"([1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DAY = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_DATE = rf"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"

FORMATS: dict[str, str | None] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": None,
    "email": None,
    "hostname": None,
    "ipv4": None,
    "ipv6": None,
    "uuid": None,
    "uri": None,
}
"""Formats that are enforced: our pattern, or None for llguidance's own. Its dates allow a 29th of February in any year
and its times a 61st second in any minute; ours allow neither, and no year 0.
"""


@dataclass(frozen=True, slots=True)
class NameRule:
    """The names that an object's members may have: any, some, or those of a pattern."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None


def read_name_rule(content: Any) -> NameRule | None:
    """Read the schema of `propertyNames`; None if a grammar cannot follow it. Names are strings without `type` too."""
    if content is True:
        return NameRule()
    if not isinstance(content, dict):
        return None
    types = content.get("type", "string")
    if types != "string" and not (isinstance(types, list) and "string" in types):
        return None
    rules = {key: value for key, value in content.items() if key not in ANNOTATIONS and key != "type"}
    if len(rules) > 1:
        return None
    match rules:
        case {"enum": [_, *_] as names}:
            return NameRule(names=tuple(dict.fromkeys(name for name in names if isinstance(name, str))))
        case {"const": str(name)}:
            return NameRule(names=(name,))
        case {"pattern": str(pattern)}:
            return NameRule(pattern=pattern)
        case _:
            return None if rules else NameRule()
