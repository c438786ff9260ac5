"""Valid messages drawn from their declared types, so that a corpus follows the protocol without being written down."""

from __future__ import annotations

import random
from typing import Any

from msgspec import inspect

from baton_wire.errors import BadMessageError
from baton_wire.messages.codec import decode, encode

TRIES = 200
LONGEST = 24
"""Longest drawn text, bytes or tuple, unless the type demands more."""


def samples(chance: random.Random, union: Any, count: int) -> list[bytes]:
    """Frames of every message class of a union, `count` of each, that its own checks accept."""
    frames = []
    info = inspect.type_info(union)
    kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
    for kind in kinds:
        assert isinstance(kind, inspect.StructType)
        good = 0
        for _ in range(TRIES * count):
            try:
                frame = encode(_draw(chance, kind))
                decode(frame, union)
            except (ValueError, BadMessageError):
                continue  # fields that do not go together
            frames.append(frame)
            if (good := good + 1) == count:
                break
        assert good, f"{kind.cls.__name__}: no valid message in {TRIES * count} draws"
    return frames


def _draw(chance: random.Random, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType():
            return kind.cls(**{field.name: _draw(chance, field.type) for field in kind.fields})
        case inspect.UnionType():
            return _draw(chance, chance.choice(kind.types))
        case inspect.EnumType():
            return chance.choice(list(kind.cls))
        case inspect.LiteralType():
            return chance.choice(kind.values)
        case inspect.VarTupleType() | inspect.ListType() | inspect.TupleType():
            return _sequence(chance, kind)
        case inspect.StrType():
            letters = "0123456789abcdef" if kind.pattern else "abcdé./:-"
            return "".join(chance.choices(letters, k=_length(chance, kind.min_length, kind.max_length)))
        case inspect.BytesType():
            return chance.randbytes(_length(chance, kind.min_length, kind.max_length) // 4 * 4 or kind.min_length or 0)
        case inspect.BoolType():
            return chance.random() < 0.5
        case inspect.NoneType():
            return None
        case _:
            return _number(chance, kind)


def _sequence(chance: random.Random, kind: Any) -> tuple[Any, ...]:
    if isinstance(kind, inspect.TupleType):
        return tuple(_draw(chance, item) for item in kind.item_types)
    low, high = kind.min_length or 0, kind.max_length
    count = chance.choice((low, low, min(low + 1, high or 3), _length(chance, low, min(high or 4, low + 3))))
    return tuple(_draw(chance, kind.item_type) for _ in range(count))


def _number(chance: random.Random, kind: Any) -> float:
    is_int = isinstance(kind, inspect.IntType)
    step = 1 if is_int else 1e-3
    low = kind.ge if kind.ge is not None else kind.gt + step if kind.gt is not None else -1e3
    high = kind.le if kind.le is not None else kind.lt - step if kind.lt is not None else 1e3
    if chance.random() < 0.5:
        high = min(high, low + 8)
    drawn = chance.choice((low, high, low + (high - low) * chance.random()))
    return int(drawn) if is_int else float(drawn)


def _length(chance: random.Random, low: int | None, high: int | None) -> int:
    least = low or 0
    return chance.randint(least, max(least, min(high if high is not None else LONGEST, LONGEST)))
