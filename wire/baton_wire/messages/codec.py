"""Frames to typed messages and back: msgpack on the wire, exact types and caps by the message classes.

The frame's length is checked before anything is allocated for it; unpacking runs with limits, without extension types
and hooks; then every field is converted strictly to its declared type. Framing is the link's business.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgpack
import msgspec

from baton_wire.errors import BadMessageError
from baton_wire.messages.values import MAX_FRAME_BYTES, MAX_GRAMMAR_CHARS

M = TypeVar("M")

_MAX_ITEMS = 1 << 16
_MAX_TEXT_BYTES = 4 * MAX_GRAMMAR_CHARS
"""UTF-8 of the longest string of any message."""


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code} is not part of the protocol")


def encode(message: msgspec.Struct) -> bytes:
    """Encode one message. Raises BadMessageError when it exceeds the frame cap."""
    frame: bytes = msgpack.packb(msgspec.to_builtins(message, builtin_types=(bytes,)), use_bin_type=True)
    if len(frame) > MAX_FRAME_BYTES:
        raise BadMessageError(f"{type(message).__name__}: {len(frame)} bytes exceed the frame cap {MAX_FRAME_BYTES}")
    return frame


def decode(frame: bytes, union: Any) -> Any:
    """Decode one message of the given union of message classes (for example `gateway_link.ToWorker`).

    Raises BadMessageError that names the offending field when the frame is too long, is not msgpack, or does not fit
    its type.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise BadMessageError(f"frame: {len(frame)} bytes exceed the cap {MAX_FRAME_BYTES}")
    try:
        raw = msgpack.unpackb(
            frame,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_str_len=_MAX_TEXT_BYTES,
            max_bin_len=len(frame),
            max_array_len=min(_MAX_ITEMS, len(frame)),
            max_map_len=0,
            max_ext_len=0,
        )
        return msgspec.convert(raw, union, strict=True, builtin_types=(bytes,))
    except (msgspec.ValidationError, msgpack.UnpackException, ValueError, TypeError, RecursionError) as error:
        raise BadMessageError(f"frame: {error}"[:300]) from error
