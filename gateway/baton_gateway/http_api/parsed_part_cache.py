"""Schemas and tools come again with every request of an agent: they are read once, and then known by their bytes.

A body is taken apart at its top level without reading what stands there. A part that was read before is looked up; the
rest, in which `null` stands for it, is read as any body is. The counts of both together are those of the whole body, so
its bounds are the same. Whatever is unusual is nobody's part: then the body is read whole, and what is wrong is told
as ever.

Conversations are never kept, only definitions.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from baton_gateway.errors import RefusedError
from baton_gateway.openai_api.json_body import MAX_DEPTH, MAX_KEYS, JsonCounts, count_json, count_quotes, parse_object

NAMES = ("response_format", "structured_outputs", "guided_json", "tools", "text", "output_config")
"""Fields of any of the endpoints that hold definitions."""
LEAST_BYTES = 1 << 10
"""Of a part that is kept: reading a shorter one again takes less than looking it up."""
MAX_KEPT_BYTES = 8 << 20
VALUE_BYTES = 200
"""A parsed value in an object, with its key."""

_take_apart = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Part:
    value: Any
    """Shared by all requests that bring it: nobody changes it."""
    shape: JsonCounts


@dataclass(frozen=True, slots=True)
class SplitBody:
    """A body whose definitions are known."""

    rest: bytes
    """An object with `null` in their places."""
    rest_shape: JsonCounts
    shape: JsonCounts
    """Of the whole body."""
    values: dict[str, Any]
    """The definitions, by their fields."""

    def read(self) -> dict[str, Any]:
        """The object that the body is. Raises RefusedError."""
        return parse_object(self.rest, self.rest_shape) | self.values


class ParsedPartCache:
    """Of one process; those that nobody sent for longest are forgotten."""

    def __init__(self, max_kept_bytes: int = MAX_KEPT_BYTES) -> None:
        self._max_kept_bytes = max_kept_bytes
        self._parts: OrderedDict[bytes, _Part] = OrderedDict()
        self.kept_bytes = 0

    def apart(self, body: bytes, max_values: int) -> SplitBody | None:
        """None: the body is to be read whole, because it has no such part, or because something is wrong with it."""
        try:
            fields = _take_apart(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        parts: dict[str, _Part] = {}
        for name in NAMES:
            if (raw := fields.get(name)) is not None and len(text := bytes(raw)) >= LEAST_BYTES:
                part = self._part(text, max_values)
                if part is None:
                    return None
                parts[name] = part
                fields[name] = _NULL
        if not parts:
            return None
        rest = b"{" + b",".join([_encode(name) + b":" + bytes(raw) for name, raw in fields.items()]) + b"}"
        try:
            rest_shape = count_json(rest, max_values)
        except RefusedError:
            return None
        shape = _together(rest_shape, [part.shape for part in parts.values()])
        is_within = shape.values <= max_values and shape.keys <= MAX_KEYS and shape.depth <= MAX_DEPTH
        if not is_within or count_quotes(body) != shape.quotes:  # a key that came twice is missing in the parts
            return None
        return SplitBody(rest, rest_shape, shape, {name: part.value for name, part in parts.items()})

    def _part(self, text: bytes, max_values: int) -> _Part | None:
        if (known := self._parts.get(text)) is not None:
            self._parts.move_to_end(text)
            return known
        alone = b'{"":' + text + b"}"
        try:
            around = count_json(alone, max_values)
            value = parse_object(alone, around)[""]
        except RefusedError:
            return None
        part = _Part(value, JsonCounts(around.values - 1, around.keys - 1, around.depth - 1, around.quotes - 2))
        self._parts[text] = part
        self.kept_bytes += _size(text, part)
        while self.kept_bytes > self._max_kept_bytes:
            self.kept_bytes -= _size(*self._parts.popitem(last=False))
        return part


_NULL = msgspec.Raw(b"null")


def _together(rest: JsonCounts, parts: list[JsonCounts]) -> JsonCounts:
    return JsonCounts(
        values=rest.values + sum(part.values for part in parts),
        keys=rest.keys + sum(part.keys for part in parts),
        depth=max(rest.depth, *(1 + part.depth for part in parts)),
        quotes=rest.quotes + sum(part.quotes for part in parts),
    )


def _size(text: bytes, part: _Part) -> int:
    return len(text) + VALUE_BYTES * part.shape.values
