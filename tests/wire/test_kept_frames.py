"""Frames that this version sends, kept byte for byte: what an older release wrote is read and written the same.

`wire_versions/` says which types and bounds a version has; the frames in `kept_frames.txt` say what they look like.
They are drawn once for each version. After raising `WIRE_VERSION`, draw them anew and commit them:

    BATON_WRITE_WIRE=1 pytest tests/wire/test_kept_frames.py
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, get_args

import pytest

from baton_testing.wire.samples import samples
from baton_wire import handshake
from baton_wire.handshake import Channel, LinkRole, Party
from baton_wire.keys import KeySet
from baton_wire.messages import gateway_link, operator_link, pair_link
from baton_wire.messages.codec import decode, encode
from baton_wire.messages.values import WIRE_VERSION
from baton_wire.session import HASHED_FROM_BYTES, PART_BYTES, AlteredFrames, Session, parts

KEPT = Path(__file__).with_name("kept_frames.txt")
UNIONS: dict[str, Any] = {
    "worker-gateway": gateway_link.ToGateway,
    "gateway-worker": gateway_link.ToWorker,
    "pair": pair_link.PairMessage,
    "gateway-operator": operator_link.ToOperator,
    "operator-gateway": operator_link.ToGateway,
}
PER_MESSAGE = 6
KEYS = KeySet({"older": b"o" * 32, "newer": b"n" * 32})


def connection_frames() -> list[tuple[str, bytes]]:
    """A handshake with given nonces and keys, and the MACs of the first frames of either side."""
    acceptor, dialler = Party(LinkRole.DECODE, b"a" * 16), Party(LinkRole.GATEWAY, b"d" * 16)
    offer = handshake.parse_offer(handshake.pack_offer(acceptor, KEYS, b"1" * handshake.NONCE_BYTES))
    nonce = b"2" * handshake.NONCE_BYTES
    proof = handshake.parse_proof(handshake.pack_proof(offer, dialler, Channel.CONTROL, KEYS, nonce))
    frames = [
        ("offer", offer.frame),
        ("proof", proof.frame + proof.mac),
        ("confirm", handshake.pack_confirm(offer, proof, KEYS)),
        ("refusal", handshake.pack_refusal(offer, dialler, Channel.DATA, KEYS, nonce)),
    ]
    for side, make in (("dialler", handshake.dialler_session), ("acceptor", handshake.acceptor_session)):
        session: Session = make(offer, proof, KEYS, AlteredFrames())
        for size in (5, 5, HASHED_FROM_BYTES):
            frames.append((f"mac-{side}-{size}", session.sign(bytes(size))[size:]))
    long_frame = bytes(PART_BYTES + 5)
    return [*frames, *((f"part-{len(part)}", part[:7]) for part in parts(long_frame))]


def drawn() -> list[tuple[str, bytes]]:
    chance = random.Random(47)
    return [(link, frame) for link, union in UNIONS.items() for frame in samples(chance, union, PER_MESSAGE)]


@pytest.fixture(scope="module")
def kept() -> list[tuple[str, bytes]]:
    """(link or step, frame) of each kept frame."""
    version = f"version {WIRE_VERSION}"
    if os.environ.get("BATON_WRITE_WIRE") and not (KEPT.exists() and KEPT.read_text().startswith(f"{version}\n")):
        lines = (f"{name} {frame.hex()}" for name, frame in (*connection_frames(), *drawn()))
        KEPT.write_text("\n".join((version, *lines)) + "\n")
    first, *kept_lines = KEPT.read_text().splitlines()
    assert first == version
    return [(name, bytes.fromhex(digits)) for name, digits in (line.split() for line in kept_lines)]


def test_a_handshake_and_the_frames_around_messages_are_as_kept(kept: list[tuple[str, bytes]]) -> None:
    assert [frame for frame in kept if frame[0] not in UNIONS] == connection_frames()


@pytest.mark.parametrize("link", UNIONS)
def test_kept_frames_of_every_message_are_read_and_written_the_same(link: str, kept: list[tuple[str, bytes]]) -> None:
    frames = [frame for name, frame in kept if name == link]
    messages = [decode(frame, UNIONS[link]) for frame in frames]
    assert [encode(message) for message in messages] == frames
    assert {type(message) for message in messages} == set(get_args(UNIONS[link]))
