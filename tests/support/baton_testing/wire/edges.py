"""Messages with one field at an edge: of its own range, or where a machine's numbers end. Drawn from declared types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

Path = tuple[int, ...]
"""Places within arrays, from the message on."""

INTEGERS = tuple(
    sign * (1 << bits) + more for bits in (31, 32, 40, 53, 63, 64) for sign in (1, -1) for more in (-1, 0, 1)
)
REALS = (math.nan, math.inf, -math.inf, 1e300, -1e300, 5e-324, -0.0, 2.0**53 + 1, 2.0**63)
MANY = 1 << 21
"""Lists longer than this are not made."""


def edge_cases(message: msgspec.Struct) -> Iterator[tuple[str, Path, Any]]:
    """Every field, also of nested values: its name, its place, and an encoded value."""
    kind = inspect.type_info(type(message))
    assert isinstance(kind, inspect.StructType)
    yield from _of_struct(type(message).__name__, kind, _builtins(message), (), 1)


def with_value(message: msgspec.Struct, path: Path, value: Any) -> list[Any]:
    """The fields of the message as they travel, the one at `path` replaced."""
    fields = _builtins(message)
    inner = fields
    for place in path[:-1]:
        inner = inner[place]
    inner[path[-1]] = value
    return fields


def largest_bytes(kind: inspect.Type) -> int:
    """The most that a value of this type takes in a frame. Raises ValueError for one without bounds."""
    match kind:
        case inspect.StructType():
            return 5 + 2 + sum(largest_bytes(field.type) for field in kind.fields)
        case inspect.UnionType():
            return max(largest_bytes(member) for member in kind.types)
        case inspect.EnumType():
            return max(5 + len(str(member.value)) for member in kind.cls)
        case inspect.VarTupleType(max_length=int(most)) | inspect.ListType(max_length=int(most)):
            return 5 + most * largest_bytes(kind.item_type)
        case inspect.TupleType():
            return 5 + sum(largest_bytes(item) for item in kind.item_types)
        case inspect.StrType(max_length=int(most)):
            return 5 + 4 * most
        case inspect.BytesType(max_length=int(most)):
            return 5 + most
        case inspect.IntType(le=None, lt=None) | inspect.IntType(ge=None, gt=None):
            raise ValueError(f"{kind} has no bounds")
        case inspect.IntType() | inspect.FloatType():
            return 9
        case inspect.BoolType() | inspect.NoneType():
            return 1
    raise ValueError(f"{kind} has no bounds")


def _builtins(message: msgspec.Struct) -> list[Any]:
    def copied(value: Any) -> Any:
        return [copied(item) for item in value] if isinstance(value, list | tuple) else value

    fields: list[Any] = copied(msgspec.to_builtins(message, builtin_types=(bytes,)))
    return fields


def _of_struct(name: str, kind: inspect.StructType, fields: list[Any], path: Path, first: int) -> Iterator[Any]:
    for place, field in enumerate(kind.fields, first):
        yield from _of_value(f"{name}.{field.name}", field.type, fields[place], (*path, place))


def _of_value(name: str, kind: inspect.Type, now: Any, path: Path) -> Iterator[Any]:  # noqa: C901 - one case per kind of type
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for kind_type in kinds:
        match kind_type:
            case inspect.StructType(tag=None) if isinstance(now, list):
                yield from _of_struct(name, kind_type, now, path, 0)
            case inspect.StructType(tag=tag) if isinstance(now, list) and now[0] == tag:
                yield from _of_struct(name, kind_type, now, path, 1)
            case inspect.VarTupleType() | inspect.ListType() if isinstance(now, list):
                for count in _lengths(kind_type):
                    if now or count == 0:
                        yield name, path, (now[:1] * count)
                if now:
                    yield from _of_value(f"{name}[]", kind_type.item_type, now[0], (*path, 0))
            case inspect.TupleType() if isinstance(now, list):
                for place, item in enumerate(kind_type.item_types):
                    yield from _of_value(f"{name}[{place}]", item, now[place], (*path, place))
            case inspect.IntType():
                yield from ((name, path, value) for value in (*_bounds(kind_type, int), *INTEGERS))
            case inspect.FloatType():
                yield from ((name, path, value) for value in (*_bounds(kind_type, float), *REALS))
            case inspect.StrType():
                yield from ((name, path, _LETTER * count) for count in _lengths(kind_type))
            case inspect.BytesType():
                yield from ((name, path, bytes(count)) for count in _lengths(kind_type))
    others: tuple[Any, ...] = (None, True, "?", b"?", -1, 1.5, [])
    yield from ((name, path, value) for value in others)


_LETTER = "\N{GRINNING FACE}"


def _bounds(kind: Any, to: Callable[[Any], Any]) -> Iterator[Any]:
    for bound in (kind.ge, kind.gt, kind.le, kind.lt):
        if bound is not None:
            step = 1 if to is int else max(1e-9, abs(bound) * 1e-9)
            yield from (to(bound - step), to(bound), to(bound + step))


def _lengths(kind: Any) -> list[int]:
    low, high = kind.min_length or 0, kind.max_length
    near = [low - 1, low] + ([] if high is None else [high, high + 1])
    return [count for count in dict.fromkeys(near) if 0 <= count <= MANY]
