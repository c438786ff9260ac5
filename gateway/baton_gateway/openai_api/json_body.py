"""Strict parsing of JSON bodies, within bounds that are checked before anything is parsed.

Refused with a clear error: invalid UTF-8, broken JSON, lone surrogates, duplicate keys, NaN and Infinity, numbers out
of range, more than 64 levels, more values than `max_values`, anything but an object at the top. `openai_types`
interprets the fields.

The bounds are counted in the bytes between strings, by a few passes in C. So refusing any body costs some nanoseconds
per byte, and parsing one costs no more than `max_values` values.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import msgspec

from baton_gateway.errors import RefusedError, invalid

_encode = msgspec.json.Encoder().encode
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Some editors and clients write it before the first character of UTF-8. It means nothing, and is left out."""
MAX_DEPTH = 64
MAX_KEYS = 20_000
"""More keys than the largest conversation with every option has."""
MAX_NAMED_BYTES = 64 << 10
"""A duplicate key in a longer body is refused without its name: the search for it runs in Python."""


def parse_object(body: bytes, counts: JsonCounts) -> dict[str, Any]:
    """Parse a body with these counts. Raises RefusedError."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise _broken("The body is not valid JSON: a number is out of range.") from error
    except msgspec.DecodeError as error:
        raise _broken(f"The body is not valid JSON: {_explain(error, body)}") from error
    except UnicodeDecodeError as error:
        raise _not_utf8(body) from error
    except RecursionError as error:
        raise _too_deep() from error
    if not isinstance(value, dict):
        raise _broken("The body must be a JSON object.")
    if count_quotes(_encode(value)) != counts.quotes:  # encoded again, a duplicate key is missing
        raise _duplicate_key(body)
    return value


class JsonCounts(msgspec.Struct, frozen=True):
    """Counts of the bytes between strings. They describe the value only if the text is valid JSON."""

    values: int
    """Commas and opening brackets: at least the number of values minus one."""
    keys: int
    depth: int
    quotes: int
    """Quotes that begin or end a string, keys included."""


def count_json(body: bytes, max_values: int) -> JsonCounts:
    """Count without parsing. Raises RefusedError for too many values or levels."""
    plain = _remove_escapes(body)
    quotes = plain.count(b'"')
    if quotes > 4 * (max_values + 1):  # a key and a string for each value
        raise _too_many(max_values)
    between = b"".join(plain.split(b'"')[::2])
    opened = between.count(b"[") + between.count(b"{")
    values = between.count(b",") + opened
    if values > max_values or between.count(b"]") + between.count(b"}") > max_values:
        raise _too_many(max_values)
    steps = memoryview(between.translate(_STEPS, _NO_BRACKETS)).cast("b")
    depth = max(itertools.accumulate(steps), default=0)
    if depth > MAX_DEPTH:
        raise _too_deep()
    keys = between.count(b":")
    if keys > MAX_KEYS:
        raise _broken(f"The body has more than {MAX_KEYS} keys, which is the most that is allowed.", "too_many_values")
    return JsonCounts(values, keys, depth, quotes)


def count_quotes(text: bytes) -> int:
    """Count the quotes that begin or end a string."""
    return _remove_escapes(text).count(b'"')


def _remove_escapes(text: bytes) -> bytes:
    """Remove escapes, so that every remaining quote begins or ends a string."""
    return text.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in text else text


_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _broken(message: str, code: str = "invalid_json") -> RefusedError:
    return invalid(None, message, code)


def _too_deep() -> RefusedError:
    return _broken(f"The body is nested deeper than {MAX_DEPTH} levels.", "json_too_deep")


def _too_many(max_values: int) -> RefusedError:
    return _broken(f"The body has more than {max_values} values, which is the most that is allowed.", "too_many_values")


def _explain(error: msgspec.DecodeError, body: bytes) -> str:
    """Return the parser's message, made clearer for lone surrogates and for constants such as NaN."""
    text = str(error).removeprefix("JSON is malformed: ")
    if "surrogate" in text or (b"\\u" in body and "truncated" in text):
        return f"{text}; a lone surrogate is not a character."
    place = _PLACE.search(text)
    constant = _CONSTANT.match(body, int(place[1])) if place else None
    return f"{constant[0].decode()} is not a number." if constant else f"{text}."


_PLACE = re.compile(r"\(byte (\d+)\)")
_CONSTANT = re.compile(rb"NaN|-?Infinity")


def _not_utf8(body: bytes) -> RefusedError:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        return _broken(f"The body is not valid UTF-8 at byte {error.start}.", "invalid_utf8")
    return _broken("The body is not valid JSON: a lone surrogate is not a character.")


def _duplicate_key(body: bytes) -> RefusedError:
    if len(body) <= MAX_NAMED_BYTES:
        try:
            _NAMING.decode(body.decode("utf-8"))
        except RefusedError as refusal:
            return refusal
    return invalid(None, "A key occurs twice in one object.", "duplicate_key")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise invalid(name[:64], f"The key '{name[:64]}' occurs twice in one object.", "duplicate_key")
        seen.add(name)
    return dict(pairs)


_NAMING = json.JSONDecoder(object_pairs_hook=_unique)
