"""What is true of a schema as a whole: that something finite is valid, what has to match at once, what excludes what.

The schemas here came out of `json_schema`: checked keywords, references to `$defs` of their own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from baton_gateway.structured_outputs.one_of import are_disjoint
from baton_gateway.structured_outputs.schema_keywords import TYPES

MAX_PATTERNS_AT_ONCE = 4
"""Patterns and formats that one text has to match: their product is built."""
MAX_CASES = 64
"""Of one `oneOf`: each is compared with each."""
_MAX_PASSES = 16

Schema = dict[str, Any] | bool
Definitions = Mapping[str, Schema]
_SCALARS = frozenset(TYPES) - {"array", "object"}


class PartError(Exception):
    """What is wrong with one schema within."""

    def __init__(self, part: Schema, keyword: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part
        self.keyword = keyword


def check_ends(root: dict[str, Any], definitions: Definitions) -> None:
    """Raises PartError for a recursion that no finite answer gets out of."""
    ended: set[str] = set()
    order = list(definitions)
    for _ in range(_MAX_PASSES):
        order.reverse()
        before = len(ended)
        for name in order:
            if _ends(definitions[name], ended):
                ended.add(name)
        if len(ended) == before:
            break
        order = [name for name in order if name not in ended]
    if not _ends(root, ended):
        endless = next((definitions[name] for name in definitions if name not in ended), None)
        if endless is None:
            raise PartError(root, "", "no answer can be valid: it asks for a value that is not allowed")
        reason = "no finite answer can be valid: references lead round in a circle, or are nested too deeply"
        raise PartError(endless, "", reason)


def check_patterns(root: dict[str, Any], definitions: Definitions) -> None:
    """Raises PartError where a text has to match many patterns at once."""
    counts: dict[str, int] = {}
    for name in reversed(list(definitions)):
        counts[name] = _patterns(definitions[name], counts)
    _patterns(root, counts)


def _patterns(part: Schema, counts: dict[str, int]) -> int:
    """How many a value of `part` has to match; an unknown reference counts as one."""
    if isinstance(part, bool):
        return 0
    total = ("pattern" in part) + ("format" in part) + bool(part.get("patternProperties"))
    cases = 0
    for key in filter(_APPLICATORS.__contains__, part):
        inner = [_patterns(each, counts) for each in _under(part, key)]
        if key == "allOf":
            total += sum(inner)
        elif key in ("anyOf", "oneOf"):
            cases = max(cases, *inner)
    total += cases
    if "$ref" in part:
        total += counts.get(_name(part["$ref"]), 1)
    if total > MAX_PATTERNS_AT_ONCE:
        raise PartError(part, "", f"more than {MAX_PATTERNS_AT_ONCE} patterns and formats would have to match at once")
    return total


def resolve_one_of(root: dict[str, Any], definitions: Definitions) -> None:
    """Make `anyOf`, which the compiler has, of `oneOf` whose cases exclude each other. Raises PartError for others."""
    for part in (root, *definitions.values()):
        _one_of(part, definitions)


def _one_of(part: Schema, definitions: Definitions) -> None:
    if isinstance(part, bool):
        return
    for key in filter(_APPLICATORS.__contains__, part):
        for each in _under(part, key):
            _one_of(each, definitions)
    cases = part.get("oneOf")
    if cases is None:
        return
    if len(cases) > MAX_CASES:
        raise PartError(part, "oneOf", f"it may have at most {MAX_CASES} cases; else write 'anyOf'")
    if not all(are_disjoint(*pair, definitions) for pair in combinations(cases, 2)):
        reason = (
            "the cases must exclude each other by type, by 'const' or by a required property with different 'const' "
            "values; else write 'anyOf'"
        )
        raise PartError(part, "oneOf", reason)
    del part["oneOf"]
    if "anyOf" in part:
        part.setdefault("allOf", []).append({"anyOf": cases})
    else:
        part["anyOf"] = cases


_APPLICATORS = frozenset({
    "allOf", "anyOf", "oneOf", "prefixItems", "items", "additionalProperties", "properties", "patternProperties",
})  # fmt: skip


def _under(part: dict[str, Any], key: str) -> list[Schema]:
    """The schemas under a keyword that is there."""
    value = part[key]
    if key in ("properties", "patternProperties"):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def _name(reference: str) -> str:
    return reference.removeprefix("#/$defs/")


def _ends(part: Schema, ended: set[str]) -> bool:
    """Whether a finite value can be valid, as far as is known from the definitions in `ended`, which have one."""
    if isinstance(part, bool):
        return part
    if "const" in part or "enum" in part:
        return True
    if "$ref" in part and _name(part["$ref"]) not in ended:
        return False
    if not all(_ends(each, ended) for each in part.get("allOf", ())):
        return False
    if not all(any(_ends(each, ended) for each in part[key]) for key in ("anyOf", "oneOf") if key in part):
        return False
    types = part.get("type", TYPES)
    types = {types} if isinstance(types, str) else set(types)
    return bool(
        types & _SCALARS
        or ("array" in types and _array_ends(part, ended))
        or ("object" in types and _object_ends(part, ended))
    )


def _array_ends(part: dict[str, Any], ended: set[str]) -> bool:
    least = part.get("minItems", 0)
    first = part.get("prefixItems", ())
    rest = least > len(first)
    return all(_ends(each, ended) for each in first[:least]) and (not rest or _ends(part.get("items", True), ended))


def _object_ends(part: dict[str, Any], ended: set[str]) -> bool:
    properties = part.get("properties", {})
    others = True if part.get("patternProperties") else part.get("additionalProperties", True)
    return all(_ends(properties.get(name, others), ended) for name in part.get("required", ()))
