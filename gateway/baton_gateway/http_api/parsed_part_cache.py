"""A cache of parsed schemas and tools by their bytes: an agent sends the same ones with every request.

A body is split at its top level without parsing the values. A part that was parsed before comes from the cache. The
rest, with `null` in place of such parts, is parsed like any body. Both together have the counts of the whole body, so
the same bounds apply. If anything is unusual, the body is parsed whole, with the usual errors.

Only definitions are cached, never conversations.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.json_body import MAX_DEPTH, MAX_KEYS, JsonCounts, count_json, count_quotes, parse_object

CACHED_FIELDS = ("response_format", "structured_outputs", "guided_json", "tools", "text", "output_config")
"""Fields of any endpoint that hold definitions."""
MIN_PART_BYTES = 1 << 10
"""The smallest part that is cached: parsing a shorter one again is cheaper than looking it up."""
MAX_CACHE_BYTES = 8 << 20
VALUE_BYTES = 200
"""The size of a parsed value in an object, with its key."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Part:
    value: Any
    """The parsed value, shared by all requests that send it, and never changed."""
    counts: JsonCounts


@dataclass(frozen=True, slots=True)
class SplitBody:
    """A body whose definitions are in the cache."""

    rest: bytes
    """The body with `null` in place of its definitions."""
    rest_counts: JsonCounts
    counts: JsonCounts
    """The counts of the whole body."""
    values: dict[str, Any]
    """The definitions by field."""

    def read(self) -> dict[str, Any]:
        """Return the body's object. Raises RefusedError."""
        return parse_object(self.rest, self.rest_counts) | self.values


class ParsedPartCache:
    """The cache of one process. The parts that were not sent for longest are dropped first."""

    def __init__(self, max_cached_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_kept_bytes = max_cached_bytes
        self._parts: OrderedDict[bytes, _Part] = OrderedDict()
        self.cached_bytes = 0

    def split(self, body: bytes, max_values: int) -> SplitBody | None:
        """Split a body. None: it must be parsed whole, since it has no such part or something is wrong with it."""
        try:
            fields = _decode_fields(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        parts: dict[str, _Part] = {}
        for name in CACHED_FIELDS:
            if (raw := fields.get(name)) is not None and len(text := bytes(raw)) >= MIN_PART_BYTES:
                part = self._get_part(text, max_values)
                if part is None:
                    return None
                parts[name] = part
                fields[name] = _NULL
        if not parts:
            return None
        rest = b"{" + b",".join([_encode(name) + b":" + bytes(raw) for name, raw in fields.items()]) + b"}"
        try:
            rest_counts = count_json(rest, max_values)
        except RefusedError:
            return None
        counts = _combine(rest_counts, [part.counts for part in parts.values()])
        is_within = counts.values <= max_values and counts.keys <= MAX_KEYS and counts.depth <= MAX_DEPTH
        if not is_within or count_quotes(body) != counts.quotes:  # a duplicate key is missing in the parts
            return None
        return SplitBody(rest, rest_counts, counts, {name: part.value for name, part in parts.items()})

    def _get_part(self, text: bytes, max_values: int) -> _Part | None:
        if (known := self._parts.get(text)) is not None:
            self._parts.move_to_end(text)
            return known
        wrapped = b'{"":' + text + b"}"
        try:
            outer = count_json(wrapped, max_values)
            value = parse_object(wrapped, outer)[""]
        except RefusedError:
            return None
        part = _Part(value, JsonCounts(outer.values - 1, outer.keys - 1, outer.depth - 1, outer.quotes - 2))
        self._parts[text] = part
        self.cached_bytes += _size(text, part)
        while self.cached_bytes > self._max_kept_bytes:
            self.cached_bytes -= _size(*self._parts.popitem(last=False))
        return part


_NULL = msgspec.Raw(b"null")


def _combine(rest: JsonCounts, parts: list[JsonCounts]) -> JsonCounts:
    return JsonCounts(
        values=rest.values + sum(part.values for part in parts),
        keys=rest.keys + sum(part.keys for part in parts),
        depth=max(rest.depth, *(1 + part.depth for part in parts)),
        quotes=rest.quotes + sum(part.quotes for part in parts),
    )


def _size(text: bytes, part: _Part) -> int:
    return len(text) + VALUE_BYTES * part.counts.values
