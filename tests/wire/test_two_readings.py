"""Frames read as their types say, compared with frames read as plain values that are checked afterwards."""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from baton_testing.wire.fuzz import WireFuzz
from baton_wire.errors import BadMessageError
from baton_wire.messages.codec import decode

FRAMES = 6_000


def read_plainly(frame: bytes, union: Any) -> Any:
    """The message by way of plain values, with the limits of `msgpack`; None where it is refused."""
    try:
        values = msgpack.unpackb(frame, raw=False, strict_map_key=True, max_map_len=0, max_ext_len=0)
        return msgspec.convert(values, union, strict=True, builtin_types=(bytes,))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return None


def read(frame: bytes, union: Any) -> Any:
    try:
        return decode(frame, union)
    except BadMessageError:
        return None


@pytest.mark.parametrize("seed", range(3))
def test_typed_reading_takes_and_refuses_the_same_frames_as_plain_reading(seed: int) -> None:
    fuzz, num_taken = WireFuzz(seed), 0
    for _ in range(FRAMES):
        frame, union = fuzz.draw()
        message = read(frame, union)
        num_taken += message is not None
        assert repr(message) == repr(read_plainly(frame, union)), frame.hex()
    assert FRAMES // 50 < num_taken < FRAMES
