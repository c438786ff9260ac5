"""Every message type × every field at the edges of its range and of a machine's numbers: nothing costs a link.

A message or field that is added is covered by itself.
"""

from __future__ import annotations

import random
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from msgspec import inspect

from baton_testing.wire.edges import edge_cases, largest_bytes, with_value
from baton_testing.wire.samples import samples
from baton_wire.errors import BadFieldsError
from baton_wire.messages import gateway_link, operator_link, pair_link
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.values import MAX_FRAME_BYTES

UNIONS: dict[str, tuple[Any, int]] = {
    "worker to gateway": (gateway_link.ToGateway, MAX_FRAME_BYTES),
    "gateway to worker": (gateway_link.ToWorker, MAX_FRAME_BYTES),
    "pair": (pair_link.PairMessage, MAX_FRAME_BYTES),
    "gateway to operator": (operator_link.ToOperator, operator_link.MAX_UP_BYTES),
    "operator to gateway": (operator_link.ToGateway, operator_link.MAX_DOWN_BYTES),
}
CUT_UP = {gateway_link.Tokens}
"""Their senders make several where one would be too long."""
KINDS = [
    pytest.param(kind, union, most, id=f"{name}-{kind.__name__}")
    for name, (union, most) in UNIONS.items()
    for kind in get_args(union)
]


def full_sample(kind: Any, seed: int) -> msgspec.Struct:
    """A valid message with as many of its optional parts as several draws have."""
    frames = samples(random.Random(seed), kind, 12)
    message: msgspec.Struct = decode(max(frames, key=len), kind)
    return message


def outcome(frame: bytes, union: Any) -> msgspec.Struct | BadFieldsError:
    """Anything else that is raised would end the link."""
    try:
        message: msgspec.Struct = decode(frame, union)
    except BadFieldsError as refusal:
        return refusal
    return message


@pytest.mark.parametrize(("kind", "union", "most"), KINDS)
def test_a_field_at_any_edge_is_taken_or_refused_for_its_request_alone(kind: Any, union: Any, most: int) -> None:
    message = full_sample(kind, 7)
    header = [place for place, name in enumerate(kind.__struct_fields__, 1) if name in ("request", "attempt")]
    refused = 0
    for name, path, value in edge_cases(message):
        fields = with_value(message, path, value)
        frame = packed(fields)
        if frame is None:
            continue
        match outcome(frame, union):
            case BadFieldsError() as refusal:
                refused += 1
                assert refusal.message == kind.__name__, name
                assert len(str(refusal)) <= 300
                if len(header) == 2 and path[0] not in header:
                    assert (refusal.request, refusal.attempt) == (fields[header[0]], fields[header[1]]), name
            case taken:
                assert packed(with_value(decode(encode(taken), union), (0,), fields[0])) == packed(
                    with_value(taken, (0,), fields[0])
                ), name
    assert refused > 0 or not kind.__struct_fields__


def packed(fields: list[Any]) -> bytes | None:
    """As it travels; None: it is no number that msgpack has, or too long to be sent."""
    try:
        frame: bytes = msgpack.packb(fields, use_bin_type=True)
    except OverflowError:
        return None
    return frame if len(frame) <= MAX_FRAME_BYTES else None


@pytest.mark.parametrize(("kind", "union", "most"), KINDS)
def test_what_its_receiver_would_refuse_is_not_sent(kind: Any, union: Any, most: int) -> None:
    message = full_sample(kind, 11)
    for name, path, value in edge_cases(message):
        field = kind.__struct_fields__[path[0] - 1]
        if len(path) > 1 or type(value) is not type(getattr(message, field)):
            continue
        changed, frame = msgspec.structs.replace(message, **{field: value}), packed(with_value(message, path, value))
        is_sent = True
        try:
            encode(changed)
        except BadFieldsError:
            is_sent = False
        is_taken = frame is not None and not isinstance(outcome(frame, union), BadFieldsError)
        assert is_sent is is_taken, (name, value)


@pytest.mark.parametrize(("kind", "union", "most"), KINDS)
def test_every_field_has_bounds_and_the_largest_message_fits_a_frame(kind: Any, union: Any, most: int) -> None:
    largest = largest_bytes(inspect.type_info(kind))
    assert largest <= most or kind in CUT_UP
