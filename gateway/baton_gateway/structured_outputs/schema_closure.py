"""Checks over a whole schema: some finite value is valid, few patterns apply at once, cases of `oneOf` are disjoint.

The schemas come from `json_schema`: their keywords are checked, and references lead to their own `$defs`. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from baton_gateway.structured_outputs.one_of import are_disjoint
from baton_gateway.structured_outputs.schema_keywords import TYPES

MAX_PATTERNS_AT_ONCE = 4
"""The most patterns and formats that one text has to match: their product is built."""
MAX_CASES = 64
"""The most cases of one `oneOf`: they are compared pairwise."""
_MAX_PASSES = 16

Schema = dict[str, Any] | bool
Definitions = Mapping[str, Schema]
_SCALARS = frozenset(TYPES) - {"array", "object"}


class PartError(Exception):
    """A fault of one schema within the whole."""

    def __init__(self, part: Schema, keyword: str, reason: str) -> None:
        super().__init__(reason)
        self.part = part
        self.keyword = keyword


def check_finite(root: dict[str, Any], definitions: Definitions) -> None:
    """Check that a finite value can be valid. Raises PartError for a recursion that never ends."""
    finite: set[str] = set()
    order = list(definitions)
    for _ in range(_MAX_PASSES):
        order.reverse()
        before = len(finite)
        for name in order:
            if _is_finite(definitions[name], finite):
                finite.add(name)
        if len(finite) == before:
            break
        order = [name for name in order if name not in finite]
    if not _is_finite(root, finite):
        endless = next((definitions[name] for name in definitions if name not in finite), None)
        if endless is None:
            raise PartError(root, "", "no answer can be valid: it asks for a value that is not allowed")
        reason = "no finite answer can be valid: references lead round in a circle, or are nested too deeply"
        raise PartError(endless, "", reason)


def check_patterns(root: dict[str, Any], definitions: Definitions) -> None:
    """Check that few patterns apply to one text. Raises PartError for the first schema that asks for more."""
    counts: dict[str, int] = {}
    for name in reversed(list(definitions)):
        counts[name] = _count_patterns(definitions[name], counts)
    _count_patterns(root, counts)


def _count_patterns(part: Schema, counts: dict[str, int]) -> int:
    """Return how many patterns a value of `part` has to match; an unknown reference counts as one."""
    if isinstance(part, bool):
        return 0
    total = ("pattern" in part) + ("format" in part) + bool(part.get("patternProperties"))
    cases = 0
    for key in filter(_APPLICATORS.__contains__, part):
        inner = [_count_patterns(schema, counts) for schema in _subschemas(part, key)]
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


def resolve_one_of(root: dict[str, Any], definitions: Definitions, may_overlap: bool = False) -> list[PartError]:
    """Replace `oneOf` by `anyOf`, which the compiler has, where the cases exclude each other. Raises PartError where
    they may overlap, or returns it with `may_overlap`.
    """
    overlaps: list[PartError] = []
    for part in (root, *definitions.values()):
        _resolve(part, definitions, overlaps)
    if overlaps and not may_overlap:
        raise overlaps[0]
    return overlaps


def _resolve(part: Schema, definitions: Definitions, overlaps: list[PartError]) -> None:
    if isinstance(part, bool):
        return
    for key in filter(_APPLICATORS.__contains__, part):
        for schema in _subschemas(part, key):
            _resolve(schema, definitions, overlaps)
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
        overlaps.append(PartError(part, "oneOf", reason))
    del part["oneOf"]
    if "anyOf" in part:
        part.setdefault("allOf", []).append({"anyOf": cases})
    else:
        part["anyOf"] = cases


_APPLICATORS = frozenset({
    "allOf", "anyOf", "oneOf", "prefixItems", "items", "additionalProperties", "properties", "patternProperties",
})  # fmt: skip


def _subschemas(part: dict[str, Any], key: str) -> list[Schema]:
    """Return the schemas under a keyword that `part` has."""
    value = part[key]
    if key in ("properties", "patternProperties"):
        return list(value.values())
    return value if isinstance(value, list) else [value]


def _name(reference: str) -> str:
    return reference.removeprefix("#/$defs/")


def _is_finite(part: Schema, finite: set[str]) -> bool:
    """Return True if a finite value can be valid, given the definitions in `finite`, which have one."""
    if isinstance(part, bool):
        return part
    if "const" in part or "enum" in part:
        return True
    if "$ref" in part and _name(part["$ref"]) not in finite:
        return False
    if not all(_is_finite(schema, finite) for schema in part.get("allOf", ())):
        return False
    if not all(any(_is_finite(case, finite) for case in part[key]) for key in ("anyOf", "oneOf") if key in part):
        return False
    types = part.get("type", TYPES)
    types = {types} if isinstance(types, str) else set(types)
    return bool(
        types & _SCALARS
        or ("array" in types and _is_finite_array(part, finite))
        or ("object" in types and _is_finite_object(part, finite))
    )


def _is_finite_array(part: dict[str, Any], finite: set[str]) -> bool:
    least = part.get("minItems", 0)
    first = part.get("prefixItems", ())
    rest = least > len(first)
    if rest and not _is_finite(part.get("items", True), finite):
        return False
    return all(_is_finite(item, finite) for item in first[:least])


def _is_finite_object(part: dict[str, Any], finite: set[str]) -> bool:
    properties = part.get("properties", {})
    others = True if part.get("patternProperties") else part.get("additionalProperties", True)
    return all(_is_finite(properties.get(name, others), finite) for name in part.get("required", ()))
