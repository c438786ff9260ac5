"""Schemas from a seed, of every keyword that is enforced. Most are bounded, so that answers end."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

NAMES = ("name", "nam", "age", "x y", 'a "q"', "line\nend", "é", "tags", "kind")
FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "duration", "email", "hostname")
PATTERNS = ("^[a-z]{1,4}$", "^\\d{2}-\\d{2}$", "^(ab|cd)+e?$", "^[A-F0-9]{4}$", "x", "^[^a-z]{2}")
MAX_DEPTH = 3

Made = dict[str, Any]


def made_schema(chance: random.Random) -> Made:
    """A whole schema; one in six is recursive."""
    if chance.random() < 1 / 6:
        node = _object(chance, 1)
        node["properties"]["next"] = {"$ref": "#/$defs/node"}
        return {"$defs": {"node": node}, "$ref": "#/$defs/node"}
    return _schema(chance, 0)


def _schema(chance: random.Random, depth: int) -> Made:
    makers: list[Callable[[random.Random, int], Made]] = [_scalar, _number, _text, _text]
    if depth < MAX_DEPTH:
        makers += [_object, _object, _array, _cases, _both]
    return chance.choice(makers)(chance, depth)


def _scalar(chance: random.Random, _depth: int) -> Made:
    values = chance.sample(["red", "reddish", 'a "quote"', 7, 70, -3, True, False, None, [1], {"a": "b"}], 3)
    return chance.choice([{"enum": values}, {"const": values[0]}, {"type": "boolean"}, {"type": ["null", "boolean"]}])


def _number(chance: random.Random, _depth: int) -> Made:
    low = chance.randint(-1_000, 1_000)
    bounds = chance.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
    schema: Made = {
        "type": chance.choice(["integer", "number"]),
        bounds[0]: low,
        bounds[1]: low + chance.randint(50, 500),
    }
    if schema["type"] == "integer" and chance.random() < 0.3:
        schema["multipleOf"] = chance.choice([2, 5, 7])
    return schema


def _text(chance: random.Random, _depth: int) -> Made:
    kind = chance.random()
    if kind < 0.25:
        return {"type": "string", "pattern": chance.choice(PATTERNS), "maxLength": 8}
    if kind < 0.45:
        return {"type": "string", "format": chance.choice(FORMATS)}
    least = chance.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + chance.randint(0, 6)}


def _array(chance: random.Random, depth: int) -> Made:
    least = chance.randint(0, 2)
    schema: Made = {"type": "array", "minItems": least, "maxItems": least + chance.randint(0, 2)}
    schema["items"] = _schema(chance, depth + 1)
    if chance.random() < 0.3:
        schema["prefixItems"] = [_schema(chance, depth + 1)]
    return schema


def _object(chance: random.Random, depth: int) -> Made:
    names = chance.sample(NAMES, chance.randint(1, 3))
    schema: Made = {"type": "object", "properties": {name: _schema(chance, depth + 1) for name in names}}
    schema["required"] = [name for name in names if chance.random() < 0.6]
    kind = chance.random()
    if kind < 0.2:
        schema["patternProperties"] = {"^k[0-9]$": _schema(chance, MAX_DEPTH)}
    schema["additionalProperties"] = False if kind < 0.8 else _schema(chance, MAX_DEPTH)
    return schema


def _cases(chance: random.Random, depth: int) -> Made:
    if chance.random() < 0.5:
        return {"anyOf": [_schema(chance, depth + 1) for _ in range(2)]}
    cases = [_object(chance, depth + 1) for _ in range(2)]
    for kind, case in enumerate(cases):
        case["properties"] = {"of": {"const": kind}} | case["properties"]
        case["required"] = ["of", *case["required"]]
    return {"oneOf": cases}


def _both(chance: random.Random, depth: int) -> Made:
    one, other = _object(chance, depth + 1), _object(chance, depth + 1)
    one["additionalProperties"] = other["additionalProperties"] = True
    shared = set(one["properties"]) & set(other["properties"])
    for name in shared:
        other["properties"].pop(name)
        other["required"] = [key for key in other["required"] if key != name]
    return {"allOf": [one, other], "maxProperties": 9} if chance.random() < 0.2 else {"allOf": [one, other]}
