"""Reads one JSON object of a request field by field: exact types, bounds, and errors that name the field.

`null` counts as absent, as in OpenAI's API. `end` refuses the fields that were not read.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Collection
from typing import Any

import msgspec

from baton_gateway.errors import RefusedError, invalid, unsupported
from baton_wire.suggestions import closest

MAX_TEXT_CHARS = 8 << 20
"""The most characters of any one text."""
MAX_IGNORED_BYTES = 16 << 10
"""The most bytes of JSON of all fields without effect together."""
MAX_UNKNOWN = 16
BESIDE_TEXTS = (
    "cache_control", "copilot_cache_control", "provider_specific_fields", "providerOptions",
    "experimental_providerMetadata",
)  # fmt: skip
"""Fields that clients put next to messages, parts, calls and tools for other providers. They have no effect."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class UnknownFields(enum.StrEnum):
    """The treatment of unknown fields of a body."""

    REFUSE = "refuse"
    IGNORE = "ignore"


class Fields:
    """The unread fields of `raw`. `path`: the prefix of their names in errors."""

    def __init__(self, raw: dict[str, Any], path: str = "") -> None:
        self._left = dict(raw)
        self._read: set[str] = set()
        self._path = path
        self._skipped: list[str] = []

    def name(self, field: str) -> str:
        return f"{self._path}{field}"

    def take(self, field: str) -> Any:
        """Return the raw value, or None."""
        self._read.add(field)
        return self._left.pop(field, None)

    def require(self, field: str) -> Any:
        value = self.take(field)
        if value is None:
            meant = closest(field, filter(PLAIN_NAME.fullmatch, self._left))
            hint = "" if meant is None else f" Is '{self.name(meant)}' meant?"
            raise invalid(self.name(field), f"'{self.name(field)}' is required.{hint}", "missing_required_parameter")
        return value

    def text(self, field: str, max_chars: int, value: Any = None) -> str | None:
        """Read a string of at most `max_chars`."""
        value = self.take(field) if value is None else value
        return None if value is None else check_text(value, self.name(field), max_chars)

    def peek(self, field: str) -> Any:
        """Return the raw value, or None, without reading the field."""
        return self._left.get(field)

    def peek_text(self, field: str) -> str:
        """Return a string without reading the field; empty where it is none."""
        value = self.peek(field)
        return value if isinstance(value, str) else ""

    def integer(self, field: str, low: int, high: int) -> int | None:
        value = self.take(field)
        return None if value is None else check_integer(value, self.name(field), low, high)

    def number(self, field: str, low: float, high: float, above_low: bool = False) -> float | None:
        """Read a finite number in [low, high], or in (low, high] with `above_low`."""
        value = self.take(field)
        return None if value is None else check_number(value, self.name(field), low, high, above_low)

    def flag(self, field: str, default: bool) -> bool:
        value = self.take(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.name(field), "a boolean")
        return value

    def refuse(self, field: str, reason: str, harmless: Collection[Any] = ()) -> None:
        """Refuse a known field unless it is absent or has a harmless value."""
        value = self.take(field)
        if value is None or any(type(value) is type(other) and value == other for other in harmless):
            return
        raise unsupported(self.name(field), reason)

    def report_skipped(self, name: str) -> None:
        """Add a part of a field's value that has no effect to the names that `end` returns."""
        self._skipped.append(name)

    def ignore(self, *fields: str, max_bytes: int) -> None:
        """Accept fields without effect if they take at most `max_bytes` of JSON together."""
        taken = 0
        for field in fields:
            if field not in self._left:
                continue
            taken += len(msgspec.json.encode(self._left.pop(field, None)))
            if taken > max_bytes:
                reason = f"'{self.name(field)}' is too long: fields without effect may have {max_bytes} bytes together."
                raise invalid(self.name(field), reason, "too_long")

    def end(self, unknown: UnknownFields = UnknownFields.REFUSE) -> tuple[str, ...]:
        """Refuse the unread fields that are not null: clients resend answers with every field of their own types.

        Or ignore them if they are few and small. Return their names, and the parts that were reported as skipped: all
        are plain enough for a header.
        """
        left = tuple(field for field, value in self._left.items() if value is not None)
        for place, field in enumerate(left):
            if unknown is UnknownFields.REFUSE or place >= MAX_UNKNOWN or not PLAIN_NAME.fullmatch(field):
                name = self.name(field)[:64]
                meant = closest(field[:64], self._read)
                hint = f" Did you mean '{self.name(meant)}'?" if meant else ""
                raise invalid(name, f"Unknown field '{name}'.{hint}", "unknown_parameter")
        self.ignore(*left, max_bytes=MAX_IGNORED_BYTES)
        return (*left, *self._skipped)


def wrong_type(name: str, expected: str) -> RefusedError:
    return invalid(name, f"'{name}' must be {expected}.", "invalid_type")


def check_text(value: Any, name: str, max_chars: int) -> str:
    if not isinstance(value, str):
        raise wrong_type(name, "a string")
    if len(value) > max_chars:
        raise invalid(name, f"'{name}' is {len(value)} characters long; at most {max_chars} are allowed.", "too_long")
    return value


def check_integer(value: Any, name: str, low: int, high: int) -> int:
    if type(value) is not int:
        raise wrong_type(name, "an integer")
    if not low <= value <= high:
        raise _out_of_range(name, low, high)
    return value


def check_number(value: Any, name: str, low: float, high: float, above_low: bool = False) -> float:
    if type(value) not in (int, float):
        raise wrong_type(name, "a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise invalid(name, f"'{name}' must be finite.")
    if not low <= value <= high or (above_low and value == low):
        raise _out_of_range(name, low, high, above_low)
    return float(value)


def _out_of_range(name: str, low: float, high: float, above_low: bool = False) -> RefusedError:
    range_text = f"above {low} and at most {high}" if above_low else f"between {low} and {high}"
    return invalid(name, f"'{name}' must be {range_text}.", "out_of_range")
