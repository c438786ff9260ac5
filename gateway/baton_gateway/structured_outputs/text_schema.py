"""Schemas of texts: every valid value is a string, or perhaps null. Tagged calls write them without quotes. Pure.

Readers of calls and grammars decide by the same rule, so a grammar never writes quotes that a reader would keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from baton_gateway.structured_outputs.schema_keywords import ANNOTATIONS

_MAX_PARTS = 256
"""The most parts of one schema that are looked at; beyond them nothing is known."""


@dataclass(frozen=True, slots=True)
class TextSchema:
    """A schema of strings, with references and choices resolved."""

    cases: tuple[Mapping[str, Any], ...]
    """Schemas of strings; a text matches one of them."""
    is_nullable: bool
    """True if null is valid too."""


def keywords(schema: Mapping[str, Any]) -> set[str]:
    """Return the keywords of a schema that may restrict what is valid."""
    return {key for key in schema if key not in ANNOTATIONS and not key.startswith("x-")}


def resolve_reference(reference: Any, root: Any) -> Any:
    """Return the schema to which a reference within `root` leads; None: it leads nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    part = root
    for name in unquote(reference[1:]).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(name)
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return None
    return part


def read_text_schema(schema: Any, root: Any) -> TextSchema | None:
    """Return the schema of texts that `schema` is; None: other values may be valid. `root`: where references lead."""
    cases: list[Mapping[str, Any]] = []
    is_nullable = False
    references: set[str] = set()
    queue = [schema]
    for _ in range(_MAX_PARTS):
        if not queue:
            return TextSchema(tuple(cases), is_nullable) if cases else None
        part = queue.pop()
        if part is False:
            continue
        if not isinstance(part, Mapping):
            return None
        match part if len(keywords(part)) == 1 else {}:
            case {"$ref": str(reference)}:
                if reference not in references:
                    queue.append(resolve_reference(reference, root))
                references.add(reference)
            case {"anyOf": [*branches]} | {"oneOf": [*branches]} | {"allOf": [_] as branches}:
                queue.extend(reversed(branches))
            case _:
                own = _own_case(part)
                if own is None:
                    return None
                case, allows_null = own
                cases += [case] if case else []
                is_nullable |= allows_null
    return None


def _own_case(part: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool] | None:
    """Return a part's schema of strings, empty if only null is valid, and whether null is; None: others may be."""
    kinds = part.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if part.get("nullable") is True and isinstance(kinds, list):
        kinds = [*kinds, "null"]
    values = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]] if "const" in part else None
    if kinds is None and values is None:
        return None
    if kinds is not None and not (isinstance(kinds, list) and all(kind in ("string", "null") for kind in kinds)):
        return None
    if kinds is None and not all(value is None or isinstance(value, str) for value in values or ()):
        return None
    takes = {"string", "null"} if kinds is None else set(kinds)
    allows_null = "null" in takes and (values is None or None in values)
    if "string" not in takes:
        return {}, allows_null
    strings = {key: content for key, content in part.items() if key not in ("nullable", "const", "enum")}
    strings["type"] = "string"
    if values is not None:
        strings["enum"] = [value for value in values if isinstance(value, str)]
        if not strings["enum"]:
            return {}, allows_null
    return strings, allows_null
