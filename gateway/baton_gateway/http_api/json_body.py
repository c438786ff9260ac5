"""Request bodies to plain values: strict JSON and nothing else.

Refused with a clear error: invalid UTF-8, broken JSON, duplicate keys, NaN and Infinity, more than 64 levels, anything
but an object at the top. What the fields mean is `openai_types`' business.
"""

from __future__ import annotations

import json
from typing import Any

from baton_gateway.errors import RefusedError, invalid

MAX_DEPTH = 64


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a body. Raises RefusedError."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _broken(f"The body is not valid UTF-8 at byte {error.start}.", "invalid_utf8") from error
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _broken(f"The body is not valid JSON: {error.msg} at character {error.pos}.") from error
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise _broken("The body is not valid JSON: a number is too long.") from error
    if not isinstance(value, dict):
        raise _broken("The body must be a JSON object.")
    _check_depth(value)
    return value


def _broken(message: str, code: str = "invalid_json") -> RefusedError:
    return invalid(None, message, code)


def _too_deep() -> RefusedError:
    return _broken(f"The body is nested deeper than {MAX_DEPTH} levels.", "json_too_deep")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise invalid(name[:64], f"The key '{name[:64]}' occurs twice in one object.", "duplicate_key")
            seen.add(name)
    return fields


def _refuse_constant(name: str) -> float:
    raise _broken(f"The body is not valid JSON: {name} is not a number.")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def _check_depth(value: dict[str, Any]) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise _too_deep()
