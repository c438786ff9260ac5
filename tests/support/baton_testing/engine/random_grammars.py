"""Random regular expressions and JSON schemas, the latter with the expression that says the same."""

from __future__ import annotations

import json
import random
import re
from typing import Any

LETTERS = "abcdeno ,:"
STRING = r'"(?:[a-z]{0,3})"'
MAX_DEPTH = 3


def random_regex(chance: random.Random, depth: int = 0) -> str:
    kind = chance.random()
    if depth == MAX_DEPTH or kind < 0.3:
        return "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, 5)))
    if kind < 0.45:
        return f"[{''.join(chance.sample('abcdefgh', 3))}0-9]"
    part = random_regex(chance, depth + 1)
    if kind < 0.65:
        return f"(?:{part}|{random_regex(chance, depth + 1)})"
    if kind < 0.8:
        least = chance.randint(0, 2)
        return f"(?:{part}){{{least},{least + chance.randint(0, 3)}}}"
    if kind < 0.9:
        return f"(?:{part})*"
    return part + random_regex(chance, depth + 1)


def random_schema(chance: random.Random, depth: int = 0, blank: str = "") -> tuple[dict[str, Any], str]:
    """A schema, and an expression of the documents that it allows, keys in their order. `blank`: an expression of what
    may stand between their parts.
    """
    kind = chance.random()
    if depth == MAX_DEPTH or kind < 0.15:
        values = chance.sample(["red", "reddish", 'a "quote"', 7, 70, True, False, None], chance.randint(1, 4))
        return {"enum": values}, f"(?:{'|'.join(re.escape(json.dumps(value)) for value in values)})"
    if kind < 0.3:
        return {"type": "integer"}, r"-?(?:0|[1-9][0-9]*)"
    if kind < 0.4:
        return {"type": "boolean"}, "(?:true|false)"
    if kind < 0.5:
        return {"type": "string", "pattern": "^[a-z]{0,3}$"}, STRING
    if kind < 0.7:
        schema, pattern = random_schema(chance, depth + 1, blank)
        least = chance.randint(0, 2)
        most = least + chance.randint(0, 2)
        more = rf"{{{max(0, least - 1)},{max(0, most - 1)}}}"
        items = rf"{pattern}{blank}(?:,{blank}{pattern}{blank}){more}" if most else ""
        whole = rf"\[{blank}(?:{items}){'' if least else '?'}\]"
        return {"type": "array", "items": schema, "minItems": least, "maxItems": most}, whole
    names = chance.sample(["name", "nam", "age", "x y", 'q"'], chance.randint(1, 3))
    parts = [random_schema(chance, depth + 1, blank) for _ in names]
    fields = f",{blank}".join(
        rf"{re.escape(json.dumps(name))}{blank}:{blank}{part}{blank}"
        for name, (_, part) in zip(names, parts, strict=True)
    )
    schema = {
        "type": "object",
        "properties": {name: part for name, (part, _) in zip(names, parts, strict=True)},
        "required": names,
        "additionalProperties": False,
    }
    return schema, rf"\{{{blank}{fields}\}}"
