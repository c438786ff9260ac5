"""How much an object and everything that it owns holds: the elements of all containers, by class and attribute."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container, Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

CONTAINERS = (dict, list, set, frozenset, tuple, deque)


def held_sizes(*roots: object, closed: Container[str] = ()) -> Counter[str]:
    """Elements by `Class.attribute`, over all objects of Baton that can be reached. What is within containers of the
    `closed` labels is not looked at.
    """
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    left: list[tuple[str, object]] = [("", root) for root in roots]
    while left:
        label, value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CONTAINERS):
            sizes[label] += len(value)
            if label in closed:
                continue
            items: list[Any] = [*value, *(value.values() if isinstance(value, dict) else ())]
            left += [(label, item) for item in items if not isinstance(item, str | bytes | int | float)]
        elif isinstance(value, MethodType):
            left.append((label, value.__self__))
        elif isinstance(value, FunctionType):
            left += [(label, cell.cell_contents) for cell in value.__closure__ or () if cell != CellType()]
        elif isinstance(value, partial):
            left += [(label, part) for part in (value.func, value.args, value.keywords)]
        elif type(value).__module__.startswith("baton_") and not type(value).__module__.startswith("baton_testing."):
            left += [(f"{type(value).__name__}.{name}", held) for name, held in _attributes(value)]
    return sizes


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    names = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
    names |= set(getattr(value, "__dict__", ())) | set(getattr(value, "__struct_fields__", ()))
    for name in names:
        if hasattr(value, name):
            yield name, getattr(value, name)
