"""KV pools of a prefill and a decode worker of several ranks, linked by the transfer's drivers over real sockets."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from baton_engine.memory.kv_pool import KvPool
from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Reservation
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_testing.kv_transfer.builders import (
    FAST,
    DecodeRecord,
    PrefillRecord,
    eventually,
    fingerprint,
    first_tokens,
)
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import Address, PeerRef, RequestKey

CONFIG = replace(FAST, group_bytes=256)
Side = tuple[KvGeometry, Sequence[KvPool]]
"""A worker's whole geometry, and the pool of each of its ranks."""


@dataclass(frozen=True, slots=True)
class Moved:
    """What one hand-over moves."""

    tokens: int
    cached: int
    """Tokens that the decode worker has already."""
    blocks: tuple[int, ...]
    """At the prefill worker; with several KV groups, each group's block of a place next to the other's."""
    places: tuple[int, ...]
    """At the decode worker."""


@dataclass(slots=True)
class LinkedPools:
    prefill: PrefillTransfer
    decode: DecodeTransfer
    epochs: tuple[bytes, bytes]
    ranks: int
    """Of the prefill worker."""
    prefill_record: PrefillRecord
    decode_record: DecodeRecord
    done: int = 0

    async def hand_over(self, request: bytes, moved: Moved) -> None:
        """Hand a request over, some layers and half of its tokens early, and wait until it has landed and is released.

        Raises AssertionError when it failed.
        """
        key, until = RequestKey(request, 1), time.monotonic() + 60.0
        self.done += 1
        peer = PeerRef(address=Address(host="127.0.0.1", port=self.decode.port), epoch=self.epochs[1])
        reserved = Reservation(moved.tokens, moved.cached, moved.places, (0,), until)
        self.decode.expected(key, self.epochs[0], reserved)
        self.prefill.opened(key, peer, moved.tokens, until)
        half = moved.tokens // 2
        for rank in range(self.ranks):
            self.prefill.computing(key, half, 2, moved.blocks, rank)
        self.prefill.computed(key, half, moved.blocks)
        self.prefill.computed(key, moved.tokens, moved.blocks)
        self.prefill.first_tokens(key, first_tokens(0))
        await eventually(lambda: len(self.decode_record.landed) == self.done or self.decode_record.failed)
        await eventually(lambda: len(self.prefill_record.released) == self.done)
        assert (self.decode_record.failed, self.prefill_record.reports) == ([], [])


@asynccontextmanager
async def linked(keys: KeyDirectory, prefill: Side, decode: Side) -> AsyncIterator[LinkedPools]:
    """Two workers whose transfers are started, and are stopped at the end."""
    model, epochs = fingerprint(kv_heads=prefill[0].kv_heads), (secrets.token_bytes(16), secrets.token_bytes(16))
    p_parts, d_parts = (
        TransferParts(epoch=epoch, fingerprint=model, geometry=geometry, keys=keys, config=CONFIG)
        for epoch, (geometry, _) in zip(epochs, (prefill, decode), strict=True)
    )
    records = PrefillRecord(), DecodeRecord()
    p = PrefillTransfer(p_parts, prefill[1], records[0])
    d = DecodeTransfer(d_parts, decode[1], records[1], LandingMemory(1 << 20), host="127.0.0.1")
    await p.start()
    await d.start()
    try:
        yield LinkedPools(p, d, epochs, len(prefill[1]), *records)
    finally:
        await p.stop()
        await d.stop()
