"""A process that dials itself: one that was found among others, as a worker that flips is."""

from __future__ import annotations

import secrets

import pytest

from baton_wire.errors import OwnEpochError
from baton_wire.handshake import NONCE_BYTES, LinkRole, Party, dial_handshake, pack_offer
from baton_wire.keys import KeySet
from baton_wire.session import AlteredFrames

OWN = b"o" * 16
KEYS = KeySet({"k1": b"1" * 32})


async def test_a_process_that_dials_itself_knows_it_from_the_offer_and_proves_nothing() -> None:
    """Found by the simulation: a worker that flips is named among those to dial, and it dialled itself for ever."""
    sent: list[bytes] = []

    async def send(frame: bytes) -> None:
        sent.append(frame)

    async def receive(length: int) -> bytes:
        return pack_offer(Party(LinkRole.DECODE, OWN), KEYS, secrets.token_bytes(NONCE_BYTES))

    class Source:
        def current(self) -> KeySet:
            return KEYS

    twin = Party(LinkRole.PREFILL, OWN)
    with pytest.raises(OwnEpochError, match="own epoch"):
        await dial_handshake(send, receive, Source(), twin, accept_roles=(LinkRole.DECODE,), altered=AlteredFrames())
    assert sent == []
