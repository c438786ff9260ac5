"""`uniqueItems` as a choice of lists, where an item has few values. A grammar cannot remember items otherwise. Pure."""

from __future__ import annotations

import math
from itertools import combinations, permutations
from typing import Any

MAX_LISTS = 512
"""The most lists of one choice."""
_PLAIN = frozenset({"type", "enum", "const", "minItems", "maxItems", "items", "uniqueItems"})


def list_unique(array: dict[str, Any]) -> list[list[Any]] | None:
    """Return lists of different items that a checked schema of an array allows; None: there are too many.

    If not all orders fit, the lists have the order of the values: narrower than the schema, and never wider.
    """
    values = _values(array.get("items"))
    if values is None or array.get("type", "array") != "array" or array.keys() - _PLAIN:
        return None
    least, most = array.get("minItems", 0), min(array.get("maxItems", len(values)), len(values))
    counts = range(least, most + 1)
    for count_lists, choose in ((math.perm, permutations), (math.comb, combinations)):
        if 0 < sum(count_lists(len(values), count) for count in counts) <= MAX_LISTS:
            return [list(chosen) for count in counts for chosen in choose(values, count)]
    return None


def _values(items: Any) -> list[Any] | None:
    """Return the values that an item may have; None: they are not few and scalar."""
    match items:
        case {"enum": [*values]} if items.keys() <= {"type", "enum"}:
            pass
        case {"const": value} if items.keys() <= {"type", "const"}:
            values = [value]
        case {"type": "boolean"} if len(items) == 1:
            values = [False, True]
        case _:
            return None
    is_scalar = all(isinstance(value, str | bool | int | float | None) for value in values)
    is_different = len({(value, isinstance(value, bool)) for value in values if is_scalar}) == len(values)
    return values if is_scalar and is_different else None
