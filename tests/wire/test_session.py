"""The session of a connection: what travels is what arrives, in order, or an error."""

from __future__ import annotations

import hashlib
import random
import secrets

import pytest

from baton_testing.wire.sessions import sessions
from baton_wire.errors import AlteredFrameError
from baton_wire.handshake import (
    NONCE_BYTES,
    Channel,
    LinkRole,
    Party,
    acceptor_session,
    dialler_session,
    pack_offer,
    pack_proof,
    parse_offer,
    parse_proof,
)
from baton_wire.keys import KeySet
from baton_wire.session import FRAME_MAC_BYTES, HASHED_FROM_BYTES, AlteredFrames, Session, session_keys

ACCEPTOR, DIALLER = Party(LinkRole.DECODE, b"d" * 16), Party(LinkRole.PREFILL, b"p" * 16)
KEYS = KeySet({"k1": b"1" * 32})


def shaken(channel: Channel = Channel.CONTROL) -> tuple[Session, Session]:
    """The acceptor's and the dialler's session of one handshake."""
    offer = parse_offer(pack_offer(ACCEPTOR, KEYS, secrets.token_bytes(NONCE_BYTES)))
    proof = parse_proof(pack_proof(offer, DIALLER, channel, KEYS, secrets.token_bytes(NONCE_BYTES)))
    return acceptor_session(offer, proof, KEYS, AlteredFrames()), dialler_session(offer, proof, KEYS, AlteredFrames())


def test_both_ends_of_a_handshake_understand_each_other() -> None:
    acceptor, dialler = shaken()
    for number in range(3):
        assert acceptor.verify(dialler.sign(b"up %d" % number)) == b"up %d" % number
        assert dialler.verify(acceptor.sign(b"down %d" % number)) == b"down %d" % number
    assert acceptor.verify(dialler.sign(b"")) == b""


@pytest.mark.parametrize("size", [0, 1, 6, 500])
def test_no_flipped_bit_passes(size: int) -> None:
    frame = random.Random(size).randbytes(size)
    for bit in range(8 * (size + FRAME_MAC_BYTES)):
        near, far = sessions()
        altered = bytearray(near.sign(frame))
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AlteredFrameError):
            far.verify(bytes(altered))


def test_no_flipped_bit_of_a_long_frame_passes() -> None:
    frame = random.Random(0).randbytes(HASHED_FROM_BYTES)
    near, far = sessions()
    assert far.verify(near.sign(frame)) == frame
    for bit in range(0, 8 * (len(frame) + FRAME_MAC_BYTES), 7):
        near, far = sessions()
        altered = bytearray(near.sign(frame))
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(AlteredFrameError):
            far.verify(bytes(altered))


@pytest.mark.parametrize("size", [HASHED_FROM_BYTES - 1, HASHED_FROM_BYTES, 10 * HASHED_FROM_BYTES])
def test_the_hash_of_a_long_frame_does_not_pass_in_its_place(size: int) -> None:
    frame = bytes(size)
    near, far = sessions()
    signed = near.sign(frame)
    with pytest.raises(AlteredFrameError):
        far.verify(hashlib.sha256(frame).digest() + signed[-FRAME_MAC_BYTES:])


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 40])
def test_a_frame_that_was_cut_or_is_no_frame_does_not_pass(cut: int) -> None:
    near, far = sessions()
    with pytest.raises(AlteredFrameError):
        far.verify(near.sign(bytes(40))[:-cut])


def test_a_frame_fits_its_place_alone() -> None:
    near, far = sessions()
    first, second = near.sign(b"one"), near.sign(b"two")
    assert far.verify(first) == b"one"
    with pytest.raises(AlteredFrameError):
        far.verify(first)
    with pytest.raises(AlteredFrameError):
        far.verify(second)  # its place has passed: nothing of this connection is taken any more


def test_a_frame_that_is_sent_back_does_not_pass() -> None:
    near, _ = shaken()
    with pytest.raises(AlteredFrameError):
        near.verify(near.sign(b"mirror"))


def test_every_connection_and_channel_has_keys_of_its_own() -> None:
    recorded = shaken()[1].sign(b"hello")
    for channel in Channel:
        with pytest.raises(AlteredFrameError):
            shaken(channel)[0].verify(recorded)
    keys = {key for label in (b"a", b"b") for key in session_keys(b"k" * 32, label)}
    assert len(keys) == 4


def test_what_was_altered_is_counted_and_told_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    times, met = [10.0, 10.2, 10.9, 11.0, 11.5], []
    altered = AlteredFrames(lambda: met.append(1), iter(times).__next__)
    for _ in times:
        far = Session(bytes(32), bytes(32), altered, "decode 0a0b")
        with pytest.raises(AlteredFrameError):
            far.verify(bytes(20))
    assert altered.count == len(met) == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"a frame from decode 0a0b was altered on its way, its link is closed ({count} so far)" for count in (1, 4)
    ]
