"""Refusals of a client's definition, with the JSON pointer of the place at fault."""

from __future__ import annotations

from baton_gateway.errors import RefusedError, invalid

_MAX_POINTER = 256


def step(pointer: str, token: str | int) -> str:
    """Return the JSON pointer (RFC 6901) of the value under `token`."""
    return f"{pointer}/{str(token).replace('~', '~0').replace('/', '~1')}"


def schema_error(field: str, pointer: str, reason: str) -> RefusedError:
    """Build the refusal of `field`. `pointer`: the place within the field; empty: all of it."""
    place = f"'{field}'" if not pointer else f"'{field}' at '{_clip(pointer)}'"
    return invalid(field, f"{place}: {reason}.", "invalid_schema")


def _clip(pointer: str) -> str:
    return pointer if len(pointer) <= _MAX_POINTER else f"{pointer[:_MAX_POINTER]}…"
