"""`propertyNames` that a grammar can follow: one of some names, or names of a pattern. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from baton_gateway.structured_outputs.schema_keywords import NO_SAY


@dataclass(frozen=True, slots=True)
class NameRule:
    """What names an object may have: all, those named, or those of a pattern."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None


def name_rule(content: Any) -> NameRule | None:
    """Of the keyword's schema; None where it says more than that. Names are strings, so `type` need not say so."""
    if content is True:
        return NameRule()
    if not isinstance(content, dict):
        return None
    types = content.get("type", "string")
    if types != "string" and not (isinstance(types, list) and "string" in types):
        return None
    said = {key: value for key, value in content.items() if key not in NO_SAY and key != "type"}
    if len(said) > 1:
        return None
    match said:
        case {"enum": [_, *_] as names}:
            return NameRule(names=tuple(dict.fromkeys(name for name in names if isinstance(name, str))))
        case {"const": str(name)}:
            return NameRule(names=(name,))
        case {"pattern": str(pattern)}:
            return NameRule(pattern=pattern)
        case _:
            return None if said else NameRule()
