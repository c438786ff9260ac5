"""Decoding of frames: whatever comes in, the result is a typed message or BadMessageError."""

from __future__ import annotations

import gc
import random
import re
import secrets
import sys
from typing import Any

import msgpack
import msgspec
import pytest

from baton_testing.kv_transfer.builders import fingerprint
from baton_wire.errors import BadFieldsError, BadMessageError
from baton_wire.messages import gateway_link, pair_link
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.measures import WorkerCondition, WorkerMeasures
from baton_wire.messages.packed_logprobs import pack_logprobs
from baton_wire.messages.pair_link import PairMessage
from baton_wire.messages.values import (
    MAX_FRAME_BYTES,
    MAX_GRAMMAR_CHARS,
    Address,
    Finish,
    Grammar,
    Message,
    NestedValue,
    PeerRef,
    Reason,
    Role,
    SamplingParams,
    Thought,
    TokenEntry,
    TokenLogprob,
    pack_ids,
    unpack_ids,
)

ID, EPOCH = secrets.token_bytes(16), secrets.token_bytes(16)
LOGPROB = TokenLogprob(logprob=-0.5, top=((3, -0.5), (9, -2.0)))
PAIR: list[Message] = [
    pair_link.PairHello(
        role=Role.DECODE,
        epoch=EPOCH,
        fingerprint=fingerprint(),
        block_tokens=64,
        tensor_parallel=2,
        landing_bytes=1 << 30,
        transports=("tcp", "ucx"),
        descriptor=b"\0\xff",
    ),
    pair_link.Grant(
        request=ID,
        attempt=1,
        transfer=9,
        start_tokens=64,
        end_tokens=100,
        unit_tokens=16,
        spans=(pair_link.Span(offset=0, length=10), pair_link.Span(offset=256, length=1 << 40)),
    ),
    pair_link.Wait(request=ID, attempt=2, position=3),
    pair_link.Reject(request=ID, attempt=1, reason=Reason.NO_CAPACITY, detail="no room"),
    pair_link.Seal(
        request=ID,
        attempt=1,
        transfer=9,
        checksums=bytes(64),
        first_tokens=(
            pair_link.FirstToken(choice=0, token=5, logprob=LOGPROB),
            pair_link.FirstToken(choice=1, token=6, finish=Finish.STOP),
        ),
    ),
    pair_link.Abandon(request=ID, attempt=1, reason=Reason.FINISHED),
    pair_link.Done(request=ID, attempt=1),
    pair_link.Heartbeat(),
]
DOWN: list[Message] = [
    gateway_link.Prefill(
        request=ID,
        attempt=1,
        tokens=pack_ids([1, 2, 1 << 23]),
        prompt_tokens=2,
        choices=(0, 1),
        sampling=SamplingParams(max_tokens=5, top_k=3, logit_bias=((7, -100.0),), stop_token_ids=(2,), logprobs=3),
        timeout_s=30.0,
        salt="tenant",
        decode=PeerRef(address=Address(host="10.0.0.1", port=9), epoch=EPOCH),
    ),
    gateway_link.Reserve(
        request=ID,
        attempt=1,
        tokens=pack_ids([1, 2]),
        prompt_tokens=2,
        choices=(0,),
        sampling=SamplingParams(
            max_tokens=5, grammar=Grammar('{"grammars": []}', 32), thought=Thought(end=(9, 8), start=(7,), max_tokens=0)
        ),
        timeout_s=30.0,
        salt="",
        prefill_epoch=EPOCH,
    ),
    gateway_link.Cancel(request=ID, attempt=1, choice=1),
]
UP: list[Message] = [
    gateway_link.Tokens(
        step=7,
        entries=(
            TokenEntry(request=ID, attempt=1, choice=0, first_index=0, ids=(5,), logprobs=pack_logprobs((LOGPROB,))),
        ),
    ),
    gateway_link.LegFailed(request=ID, attempt=1, reason=Reason.PEER_LOST, detail="gone"),
]
ALL: list[tuple[msgspec.Struct, Any]] = [
    *((message, PairMessage) for message in PAIR),
    *((message, gateway_link.ToWorker) for message in DOWN),
    *((message, gateway_link.ToGateway) for message in UP),
]


@pytest.mark.parametrize(("message", "union"), ALL, ids=lambda value: type(value).__name__)
def test_a_message_comes_back_as_it_was(message: msgspec.Struct, union: Any) -> None:
    assert decode(encode(message), union) == message


@pytest.mark.parametrize(("message", "union"), ALL, ids=lambda value: type(value).__name__)
def test_truncated_at_every_byte_it_is_a_typed_error(message: msgspec.Struct, union: Any) -> None:
    frame = encode(message)
    for size in range(len(frame)):
        with pytest.raises(BadMessageError):
            decode(frame[:size], union)
    with pytest.raises(BadMessageError):
        decode(frame + b"\0", union)


def test_ten_thousand_mutated_frames_are_messages_or_typed_errors() -> None:
    chance = random.Random(11)
    frames = [(encode(message), union) for message, union in ALL]
    refused = 0
    for _ in range(10_000):
        frame, union = chance.choice(frames)
        changed = bytearray(frame)
        for _ in range(chance.randint(1, 4)):
            kind, at = chance.random(), chance.randrange(len(changed))
            if kind < 0.6:
                changed[at] = chance.randrange(256)
            elif kind < 0.8:
                changed[at:at] = chance.randbytes(chance.randint(1, 8))
            elif len(changed) > 8:
                del changed[at : at + chance.randint(1, 4)]
        try:
            decoded = decode(bytes(changed), union)
        except BadMessageError:
            refused += 1
            continue
        assert encode(decoded)
    assert refused > 5_000


def test_five_thousand_random_frames_are_messages_or_typed_errors() -> None:
    chance = random.Random(12)
    for _ in range(5_000):
        frame = chance.randbytes(chance.choice((0, 1, 2, 5, 20, 200)))
        try:
            decode(frame, PairMessage)
        except BadMessageError:
            continue


ATTACKS = {
    "an array of four billion": b"\xdd\xff\xff\xff\xff",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a string of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "bytes of four gigabytes": b"\xc6\xff\xff\xff\xff",
    "the byte that is never used": b"\xc1",
    "an extension type": b"\xc7\x01\x05\x00",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x00",
    "100,000 nested arrays": b"\x91" * 100_000,
    "a map": msgpack.packb({"type": 7}),
    "a map with an integer key": msgpack.packb({1: 2}),
    "nothing": b"",
    "nil": b"\xc0",
    "an empty array": b"\x90",
    "an unknown type": msgpack.packb([99, ID, 1]),
    "a type that is a string": msgpack.packb(["7", ID, 1]),
    "a field too many": msgpack.packb([8, 1]),
    "a field too few": msgpack.packb([3, ID, 1]),
    "invalid UTF-8": b"\x95\x04\xc4\x10" + ID + b"\x01\xa2no\xa2\xff\xfe",
}


@pytest.mark.parametrize("frame", ATTACKS.values(), ids=list(ATTACKS))
def test_a_hostile_frame_is_a_typed_error(frame: bytes) -> None:
    with pytest.raises(BadMessageError):
        decode(frame, PairMessage)


WRONG: list[tuple[str, list[Any]]] = [
    ("short request id", [3, ID[:15], 1, 0]),
    ("request id as text", [3, "x" * 16, 1, 0]),
    ("attempt zero", [3, ID, 0, 0]),
    ("attempt as float", [3, ID, 1.0, 0]),
    ("attempt as bool", [3, ID, True, 0]),
    ("attempt as text", [3, ID, "1", 0]),
    ("negative position", [3, ID, 1, -1]),
    ("huge position", [3, ID, 1, 1 << 63]),
    ("unknown reason", [4, ID, 1, "because", ""]),
    ("detail too long", [4, ID, 1, "internal", "x" * 257]),
    ("transfer zero", [2, ID, 1, 0, 0, 16, 16, []]),
    ("negative span", [2, ID, 1, 1, 0, 16, 16, [[-1, 4]]]),
    ("span beyond 2^48", [2, ID, 1, 1, 0, 16, 16, [[1 << 48, 4]]]),
    ("too many spans", [2, ID, 1, 1, 0, 16, 16, [[0, 1]] * 65]),
    ("no first tokens", [5, ID, 1, 1, b"", []]),
    ("too many first tokens", [5, ID, 1, 1, b"", [[n % 128, 1] for n in range(129)]]),
    ("choice out of range", [5, ID, 1, 1, b"", [[128, 1]]]),
]


@pytest.mark.parametrize(("case", "fields"), WRONG, ids=[case for case, _ in WRONG])
def test_a_field_of_the_wrong_type_or_range_is_a_typed_error(case: str, fields: list[Any]) -> None:
    with pytest.raises(BadMessageError):
        decode(msgpack.packb(fields), PairMessage)


HELLO = gateway_link.Hello(Role.DECODE, EPOCH, fingerprint(), "t", 7, "tiny", 99, 99, 4, 8, 16, 9, "0" * 64, 1)
MEASURES = WorkerMeasures(
    Role.DECODE, EPOCH, "t", Address("127.0.0.1", 1), WorkerCondition.LIVE, True, 0, 0, 0, 16, 9, 9, 0, 1.0
)


def test_a_worker_that_moved_much_kv_is_still_understood() -> None:
    moved = 5 << 50  # some weeks of a full link
    state = gateway_link.WorkerState(False, 0, 0, 0, 9, 9, 1, 0.01, kv_bytes=moved)
    assert decode(encode(state), gateway_link.ToGateway) == state
    measures = msgspec.structs.replace(MEASURES, kv_bytes=moved)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(measures), type=WorkerMeasures) == measures


@pytest.mark.parametrize("value", [PAIR[0], HELLO, MEASURES], ids=lambda value: type(value).__name__)
def test_only_a_worker_says_hello_or_is_measured_as_one(value: msgspec.Struct) -> None:
    frame = msgspec.msgpack.encode(value)
    assert msgspec.msgpack.decode(frame, type=type(value)) == value
    decode, other = (msgspec.msgpack.encode(role) for role in (Role.DECODE, Role.GATEWAY))
    with pytest.raises(msgspec.ValidationError, match="role: gateway is not allowed: one of prefill, decode"):
        msgspec.msgpack.decode(frame.replace(decode, other, 1), type=type(value))


def test_the_frame_cap_holds_in_both_directions() -> None:
    with pytest.raises(BadMessageError, match="exceed the cap"):
        decode(bytes(MAX_FRAME_BYTES + 1), PairMessage)
    seal = PAIR[4]
    assert isinstance(seal, pair_link.Seal)
    full = msgspec.structs.replace(seal, checksums=bytes(pair_link.MAX_CHECKSUM_BYTES))
    assert decode(encode(full), PairMessage) == full
    over = msgspec.structs.replace(seal, checksums=bytes(pair_link.MAX_CHECKSUM_BYTES + 1))
    with pytest.raises(BadMessageError, match="checksums"):
        encode(over)


def _constrained(*fields: Any) -> bytes:
    """A PREFILL whose grammar and thought are `fields`."""
    raw = msgpack.unpackb(encode(DOWN[0]))
    raw[6] = [*raw[6][: SamplingParams.__struct_fields__.index("grammar")], *fields]
    frame: bytes = msgpack.packb(raw)
    return frame


def test_the_longest_grammar_fits_a_frame_and_one_character_more_does_not() -> None:
    longest = "\N{GRINNING FACE}" * MAX_GRAMMAR_CHARS
    prefill = decode(_constrained([longest]), gateway_link.ToWorker)
    assert prefill.sampling.grammar == Grammar(longest)
    assert decode(encode(prefill), gateway_link.ToWorker) == prefill
    with pytest.raises(BadMessageError):
        decode(_constrained(["x" * (MAX_GRAMMAR_CHARS + 1)]), gateway_link.ToWorker)


@pytest.mark.parametrize(
    "fields",
    [
        ([""],),
        ([b"{}"],),
        ("{}",),
        (None, [[]]),
        (None, [[1] * 17]),
        (None, [[1], [1] * 17]),
        (None, [[1 << 24]]),
        (None, [[1], [], -1]),
        (None, [[1], [], 1.5]),
        (None, [[1], [], (1 << 20) + 1]),
        (None, None, 0),
    ],
)
def test_a_grammar_or_thought_out_of_bounds_is_a_typed_error(fields: tuple[Any, ...]) -> None:
    with pytest.raises(BadMessageError):
        decode(_constrained(*fields), gateway_link.ToWorker)


def test_token_ids_are_little_endian_and_whole() -> None:
    ids = [0, 1, 258, (1 << 24) - 1]
    assert unpack_ids(pack_ids(ids)) == ids
    assert pack_ids([258]) == b"\x02\x01\x00\x00"
    assert sys.byteorder in ("little", "big")
    with pytest.raises(ValueError, match="5 bytes are not a multiple of 4"):
        unpack_ids(b"12345")


def test_no_message_is_visited_by_the_garbage_collector() -> None:
    """They are immutable and refer to plain values, so no cycle goes through them. With 100,000 log probabilities
    waiting in a gateway, a full collection held up its loop for 70 ms."""
    entries = (TokenEntry(bytes(16), 1, 0, 0, (7,), pack_logprobs((LOGPROB,)), None, None),)
    message = decode(encode(gateway_link.Tokens(1, entries)), gateway_link.ToGateway)
    assert isinstance(message, gateway_link.Tokens)
    gc.collect(0)  # a tuple is no longer visited once a collection has seen that nothing in it is
    assert not any(map(gc.is_tracked, (message, message.entries, message.entries[0], message.entries[0].logprobs)))
    kinds = {Message, NestedValue}
    while more := {kind for base in kinds for kind in base.__subclasses__()} - kinds:
        kinds |= more
    assert len(kinds) > 20
    assert not [kind for kind in kinds if kind.__struct_config__.gc]


@pytest.mark.parametrize(
    ("field", "value", "place", "attempt"),
    [(3, "bogus", "message.reason", 2), (2, "x", "message.attempt", None), (0, 99, "message[0]", None)],
)
def test_a_message_inside_another_is_refused_by_its_own_field_and_for_its_request(
    field: int, value: object, place: str, attempt: int | None
) -> None:
    inner = [4, ID, 2, "no_capacity", ""]
    inner[field] = value
    with pytest.raises(BadFieldsError, match=f"at `{re.escape(place)}`") as refusal:
        decode(msgpack.packb([10, 0, 1, inner]), PairMessage)
    assert (refusal.value.message, refusal.value.attempt) == ("AtRanks", attempt)
    assert refusal.value.request == (None if field == 0 else ID)
