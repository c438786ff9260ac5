"""Frames to typed messages and back: msgpack on the wire, exact types and caps by the message classes.

The frame's length is checked before anything is allocated for it; then every field is read strictly as its declared
type, without extension types, maps and hooks. A message that is sent is read the same way first: nothing leaves that
its receiver would refuse. Framing is up to the link.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any, get_args

import msgpack
import msgspec

from baton_wire.errors import BadFieldsError, BadMessageError
from baton_wire.messages.values import MAX_FRAME_BYTES, Attempt, RequestId

_MAX_ITEMS = 1 << 16
_MAX_ERROR_CHARS = 300
_CONVERSION_ERRORS = (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError)
_encoder = msgspec.msgpack.Encoder()


def _refuse_extension(code: int, data: bytes | memoryview) -> Any:
    raise ValueError(f"extension type {code} is not part of the protocol")


def encode(message: msgspec.Struct) -> bytes:
    """Encode one message. Raises BadFieldsError when its receiver would refuse it, and names the field."""
    kind = type(message)
    try:
        frame = _encoder.encode(message)
        if len(frame) > MAX_FRAME_BYTES:
            raise _unsendable(message, f"{kind.__name__}: {len(frame)} bytes exceed the frame cap {MAX_FRAME_BYTES}")
        _decoder(kind).decode(frame)
    except _CONVERSION_ERRORS as error:
        carried = getattr(message, "message", None)
        raise _unsendable(message, _described(kind, error, None if carried is None else type(carried))) from error
    return frame


def _unsendable(message: msgspec.Struct, text: str) -> BadFieldsError:
    name = type(message).__name__
    return BadFieldsError(text, name, getattr(message, "request", None), getattr(message, "attempt", None))


def decode(frame: bytes, union: Any) -> Any:
    """Decode one message of the given union of message classes (for example `gateway_link.ToWorker`).

    Raises BadFieldsError for a message of the union with a field that does not fit, which it names. Raises another
    BadMessageError when the frame is too long, is not msgpack, or is no message of the union.
    """
    if len(frame) > MAX_FRAME_BYTES:
        raise BadMessageError(f"frame: {len(frame)} bytes exceed the cap {MAX_FRAME_BYTES}")
    try:
        return _decoder(union).decode(frame)
    except _CONVERSION_ERRORS as error:
        raise _refused(_unpack(frame), union, error) from error


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(kind, strict=True, ext_hook=_refuse_extension)


def _unpack(frame: bytes) -> object:
    """The plain values of a frame that is no valid message. Raises BadMessageError where it is not msgpack either."""
    try:
        return msgpack.unpackb(
            frame,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_str_len=len(frame),
            max_bin_len=len(frame),
            max_array_len=min(_MAX_ITEMS, len(frame)),
            max_map_len=0,
            max_ext_len=0,
        )
    except (msgpack.UnpackException, *_CONVERSION_ERRORS) as error:
        raise BadMessageError(f"frame: {error}"[:_MAX_ERROR_CHARS]) from error


def part_of(fields: object, kind: Any) -> Any:
    """One value nested in the fields of a message that does not fit; None where it does not fit either."""
    try:
        return msgspec.convert(fields, kind, strict=True, builtin_types=(bytes,))
    except _CONVERSION_ERRORS:
        return None


def _refused(raw: object, union: Any, error: Exception) -> BadMessageError:
    tag = raw[0] if isinstance(raw, list) and raw else None
    kind = _by_tag(union).get(tag) if type(tag) is int else None
    if kind is None:
        return BadMessageError(f"frame: {error}"[:_MAX_ERROR_CHARS])
    assert isinstance(raw, list)
    fields = dict(zip(kind.__struct_fields__, raw[1:], strict=False))
    carried, carried_raw = None, fields.get("message")
    if isinstance(carried_raw, list) and (carried := _carried(kind, carried_raw)) is not None:
        fields = dict(zip(carried.__struct_fields__, carried_raw[1:], strict=False))
    request, attempt = part_of(fields.get("request"), RequestId), part_of(fields.get("attempt"), Attempt)
    refusal = BadFieldsError(_described(kind, error, carried), kind.__name__, request, attempt)
    refusal.fields = raw
    return refusal


def _carried(kind: type[msgspec.Struct], raw: list[object]) -> type[msgspec.Struct] | None:
    """The type of the message that a message of this kind carries; None where it is not known."""
    union = next(field.type for field in msgspec.structs.fields(kind) if field.name == "message")
    return _by_tag(union).get(raw[0]) if raw and type(raw[0]) is int else None


@functools.cache
def _by_tag(union: Any) -> Mapping[int, type[msgspec.Struct]]:
    kinds = get_args(union) if isinstance(union, types.UnionType) else (union,)
    return {kind.__struct_config__.tag: kind for kind in kinds}


def _described(kind: type[msgspec.Struct], error: Exception, carried: type[msgspec.Struct] | None) -> str:
    """Which field does not fit and why, with the fields' names for their places in the arrays. `carried`: the type of
    the message inside this one."""
    text = str(error)
    head, marker, place = text.rpartition(" - at `$")
    if marker and (named := _name_of(kind, place)) is not None:
        name, rest = named
        if name == "message" and carried is not None and (inner := _name_of(carried, rest)) is not None:
            name, rest = f"{name}.{inner[0]}", inner[1]
        text = f"{head} - at `{name}{rest}"
    return f"{kind.__name__}: {text}"[:_MAX_ERROR_CHARS]


def _name_of(kind: type[msgspec.Struct], place: str) -> tuple[str, str] | None:
    """The name of the field at a place such as `[3][1]`, and the place inside it."""
    number, closed, rest = place.removeprefix("[").partition("]")
    names = kind.__struct_fields__ if kind.__struct_config__.tag is None else ("type", *kind.__struct_fields__)
    if not (place.startswith("[") and closed and number.isdigit() and int(number) < len(names)):
        return None
    return names[int(number)], rest
