"""The frames of the handshake alone: what is no offer, and what is never packed."""

from __future__ import annotations

import pytest

from baton_wire.errors import AuthenticationError
from baton_wire.handshake import NONCE_BYTES, Channel, LinkRole, Party, pack_offer, pack_proof, parse_offer
from baton_wire.keys import MAX_KEY_ID_BYTES, MAX_KEYS, KeySet

ACCEPTOR, KEYS, NONCE = (
    Party(LinkRole.DECODE, b"d" * 16),
    KeySet({"k1": b"1" * 32, "k2": b"2" * 32}),
    b"n" * NONCE_BYTES,
)


@pytest.mark.parametrize(
    ("place", "value"), [(0, b"BATONLNX"), (-1 - MAX_KEYS * MAX_KEY_ID_BYTES, bytes([MAX_KEYS + 1]))]
)
def test_an_offer_of_another_protocol_or_of_too_many_keys_is_refused(place: int, value: bytes) -> None:
    offer = bytearray(pack_offer(ACCEPTOR, KEYS, NONCE))
    place %= len(offer)
    offer[place : place + len(value)] = value
    with pytest.raises(AuthenticationError, match="offer: the peer does not speak this protocol"):
        parse_offer(bytes(offer))


@pytest.mark.parametrize(("epoch", "bytes_of_nonce"), [(b"d" * 15, 32), (b"d" * 17, 32), (b"d" * 16, 31)])
def test_an_epoch_or_a_nonce_of_another_size_is_never_sent(epoch: bytes, bytes_of_nonce: int) -> None:
    """A frame has fields of fixed sizes: what is shorter would be filled up, and what is longer cut."""
    party, drawn = Party(LinkRole.DECODE, epoch), b"n" * bytes_of_nonce
    with pytest.raises(ValueError, match=f"epoch: {len(epoch)} bytes .*nonce: {bytes_of_nonce}"):
        pack_offer(party, KEYS, drawn)
    with pytest.raises(ValueError, match=f"epoch: {len(epoch)} bytes .*nonce: {bytes_of_nonce}"):
        pack_proof(parse_offer(pack_offer(ACCEPTOR, KEYS, NONCE)), party, Channel.DATA, KEYS, drawn)
