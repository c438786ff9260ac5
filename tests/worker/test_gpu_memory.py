"""Hand-overs from one pool's memory into a landing region and another pool, without a copy on the host.

The classes are those of a GPU; here they use the host's memory.
"""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from baton_engine.memory.kv_pool import KvPool
from baton_kv_transfer import handover_steps
from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.handover import Reservation, Verify
from baton_kv_transfer.layout import Extent, paired
from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.table import TransportChoice
from baton_kv_transfer.transports.ucx.sender import UCX
from baton_testing.kv_transfer.builders import (
    FAST,
    DecodeRecord,
    PrefillRecord,
    eventually,
    fingerprint,
    first_tokens,
    key_directory,
)
from baton_testing.kv_transfer.nixl import NEEDS_UCX
from baton_wire.kv_shape import KvGeometry, Units
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.values import Address, PeerRef, Reason, RequestKey
from baton_worker.building.gpu_memory import (
    LandingDevice,
    PoolDevice,
    landing_device,
    memory_of,
    pool_device,
)

CPU = torch.device("cpu")
GEOMETRY = KvGeometry(layers=4, kv_heads=2, head_dim=8, element_bytes=4, block_tokens=16)
LANDING = 64 * GEOMETRY.block_bytes
CONFIG = replace(
    FAST,
    liveness=LivenessConfig(30.0, 60.0),
    handshake_s=10.0,
    link_wait_s=20.0,
    transport=TransportChoice.UCX,
    group_bytes=1,
    max_groups=2,
    max_put_bytes=2 * GEOMETRY.block_bytes,
)


class Unreachable(KvPool):
    """A pool that the host cannot read, and must not be asked to copy."""

    def region(self) -> memoryview | None:
        return None

    def pack(self, *_: object) -> None:
        raise AssertionError("packed through the host")

    def scatter(self, *_: object) -> bytes:
        raise AssertionError("scattered from the host")


def random_pool(seed: int, made: type[KvPool] = KvPool) -> KvPool:
    pool = made(GEOMETRY, 24, torch.float32, CPU)
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(seed)))
    return pool


class Counting(LandingDevice):
    calls: ClassVar[list[tuple[int, int]]] = []
    """Bytes and layer groups of each call."""

    def scatter(self, landing: Extent, units: Units, /) -> bytes:
        self.calls.append((landing.length, units.groups))
        return super().scatter(landing, units)


class Flipping(LandingDevice):
    """One bit of what lands is another one."""

    def scatter(self, landing: Extent, units: Units, /) -> bytes:
        self._bytes[landing.offset + 5] ^= 4
        return super().scatter(landing, units)


@NEEDS_UCX
@pytest.mark.parametrize(
    ("verify", "flips", "at_once", "early"),
    [
        (Verify.FULL, False, 2, False),
        (Verify.FULL, False, 3, False),
        (Verify.FULL, False, 3, True),
        (Verify.FULL, True, 3, True),
        (Verify.STAMPS, True, 2, False),
    ],
)
async def test_kv_goes_from_pool_memory_to_a_landing_region_and_into_blocks(
    tmp_path: Path, verify: Verify, flips: bool, at_once: int, early: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger=handover_steps.log.name)
    config = replace(CONFIG, verify=verify, max_put_bytes=at_once * GEOMETRY.block_bytes)
    config = replace(config, portion_bytes=1 if early else None)
    keys = key_directory(tmp_path / "keys")
    Counting.calls.clear()
    source, target = random_pool(1, Unreachable), random_pool(2, Unreachable)
    before = target.tensor.clone()
    prefill_record, decode_record = PrefillRecord(), DecodeRecord()
    landing = (Flipping if flips else Counting)(target, LANDING)
    p_epoch, d_epoch = secrets.token_bytes(16), secrets.token_bytes(16)
    p_parts, d_parts = (
        TransferParts(epoch=epoch, fingerprint=fingerprint(), geometry=GEOMETRY, keys=keys, config=config)
        for epoch in (p_epoch, d_epoch)
    )
    p = PrefillTransfer(p_parts, [source], prefill_record, device=PoolDevice(source))
    d = DecodeTransfer(d_parts, [target], decode_record, LandingMemory(LANDING, device=landing), host="127.0.0.1")
    await p.start()
    await d.start()
    try:
        key, until = RequestKey(secrets.token_bytes(16), 1), time.monotonic() + 60.0
        blocks, places, tokens, cached = (9, 4, 5, 17), (3, 11, 2, 20), 60, 16
        p.opened(key, PeerRef(address=Address(host="127.0.0.1", port=d.port), epoch=d_epoch), tokens, until)
        d.expected(key, p_epoch, Reservation(tokens, cached, places, (0,), until))
        await eventually(lambda: bool(prefill_record.granted), 20.0)
        p.computing(key, tokens, 2, blocks)
        await eventually(lambda: p.stats().bytes_sent == 3 * GEOMETRY.block_bytes // 2, 30.0)
        p.computed(key, tokens, blocks)
        p.first_tokens(key, first_tokens(0))
        await eventually(lambda: bool(decode_record.landed or decode_record.failed), 30.0)
        await eventually(lambda: bool(prefill_record.released), 30.0)
        if flips and verify is Verify.FULL:
            assert [entry[1] for entry in decode_record.failed] == [Reason.KV_CORRUPT]
            return
        assert [entry[0] for entry in decode_record.landed] == [key]
        await eventually(lambda: d.stats().bytes_received == p.stats().bytes_sent == 3 * GEOMETRY.block_bytes, 30.0)
    finally:
        await p.stop()
        await d.stop()
    moved = (target.tensor != before).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == sorted(places[1:])
    if not flips:
        half = 3 * GEOMETRY.block_bytes // 2
        assert Counting.calls == ([(half, 1), (half, 1)] if early or at_once == 2 else [(2 * half, 2)])
    equal = torch.equal(target.tensor[list(places[1:])], source.tensor[list(blocks[1:])])
    assert equal is not flips
    steps = [re.fullmatch(r"step [0-9a-f]{32}/1 \d+\.\d{6} (.*)", line) for line in caplog.messages]
    assert {match[1] for match in steps if match} == {
        *("opened", "granted", "put done", "first token drawn", "seal sent", "seal received", "landed")
    }


def test_a_landing_region_is_scattered_as_the_same_bytes_from_the_host_are() -> None:
    source, one, other = random_pool(1), random_pool(2), random_pool(2)
    landing = LandingDevice(one, LANDING)
    stream = bytearray(2 * GEOMETRY.block_bytes)
    source.pack(Units([7, 3], 16, 0, 2, GEOMETRY.whole), memoryview(stream))
    offset = 3 * 256
    landing._bytes[offset : offset + len(stream)] = torch.frombuffer(stream, dtype=torch.uint8)
    sums = landing.scatter(Extent(offset, len(stream)), Units([5, 6], 16, 0, 2, GEOMETRY.whole))
    assert (
        sums
        == other.scatter(memoryview(stream), Units([5, 6], 16, 0, 2, GEOMETRY.whole))
        == source.checksums(Units([7, 3], 16, 0, 2, GEOMETRY.whole))
    )
    assert torch.equal(one.tensor, other.tensor)
    with pytest.raises(ValueError, match="landing: bytes to"):
        landing.scatter(Extent(LANDING - 256, 512), Units([5], 16, 0, 1, GEOMETRY.whole))


def test_memory_is_where_the_tensor_is_and_the_probe_is_no_part_of_it() -> None:
    pool = random_pool(1)
    sent, landing = PoolDevice(pool), LandingDevice(pool, LANDING)
    assert sent.memory == memory_of(pool.tensor)
    assert (sent.memory.address, sent.memory.length) == (pool.tensor.data_ptr(), pool.tensor.nbytes)
    assert not sent.memory.holds(sent.probe)
    assert landing.memory.length == LANDING
    assert landing.probe.address == landing.memory.address + LANDING
    assert pool_device(pool, (UCX,)) is None, "a pool of the host is sent from directly"
    assert landing_device(pool, LANDING, (UCX,)) is None


def test_warming_up_leaves_the_pool_as_it_is() -> None:
    pool = random_pool(3)
    before = pool.tensor.clone()
    pool.warm_up()
    assert torch.equal(pool.tensor, before)


def test_pairing_keeps_order_and_splits_where_either_side_does() -> None:
    source, target = [Extent(100, 4), Extent(0, 0), Extent(10, 6)], [Extent(50, 3), Extent(70, 7)]
    assert paired(source, target) == [(100, 50, 3), (103, 70, 1), (10, 71, 6)]
    assert paired([], []) == []
    with pytest.raises(ValueError, match="write: 4 source bytes for 5 landing bytes"):
        paired([Extent(0, 4)], [Extent(0, 5)])
