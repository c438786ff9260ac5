"""Whole hand-overs with UCX, what a pair agrees on, and descriptors that are not what they should be."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from baton_kv_transfer.decode.transfer import DecodeTransfer
from baton_kv_transfer.landing import SpanState
from baton_kv_transfer.transports.bandwidth import is_below, measure
from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.seam import Transport, WriteDone
from baton_kv_transfer.transports.table import TransportChoice, agreed, offered
from baton_kv_transfer.transports.tcp import TCP
from baton_kv_transfer.transports.ucx import landing as ucx_landing
from baton_kv_transfer.transports.ucx.descriptor import UcxDescriptor, digest, pack, unpack
from baton_kv_transfer.transports.ucx.lanes import UNKNOWN, LaneLog, put_lanes
from baton_kv_transfer.transports.ucx.sender import UCX, has_rdma
from baton_testing.kv_transfer.builders import FAST, GEOMETRY, eventually
from baton_testing.kv_transfer.nixl import NEEDS_UCX
from baton_testing.kv_transfer.transfer_pair import Pair, Request
from baton_wire.discovery import Endpoint
from baton_wire.errors import BadMessageError, UnfitPairError
from baton_wire.liveness import LivenessConfig
from baton_wire.messages.values import Reason

CALM = replace(FAST, liveness=LivenessConfig(1.5, 3.0))
"""Loading and connecting UCX holds the interpreter for a while, on a busy machine for longer than FAST allows."""
OVER_UCX = replace(CALM, transport=TransportChoice.UCX)


# The real library -----------------------------------------------------------------------------------------------------


@NEEDS_UCX
@pytest.mark.parametrize("host_memory", [True, False])
async def test_hand_overs_travel_over_ucx_and_both_ends_count_the_same(pair: Pair, host_memory: bool) -> None:
    async with pair({"config": OVER_UCX, "host_memory": host_memory}, {"config": OVER_UCX}) as (p, d):
        for attempt in range(1, 4):
            request = Request(p, d, tokens=23, cached=4, attempt=attempt)
            for step in (request.open, request.expect, request.compute_all, request.draw):
                step()
            await request.landed()
        sent = 3 * 5 * GEOMETRY.block_bytes
        await eventually(lambda: d.transfer.stats().bytes_received == p.transfer.stats().bytes_sent == sent)
        assert d.transfer.stats().transports == {"ucx": 1}
        await eventually(lambda: [pair.bytes_per_s is None for pair in p.transfer.stats().pairs] == [False])
        (report,) = p.transfer.stats().pairs
        assert report.transport == "ucx"
        assert report.lane.startswith("ucx ")


@NEEDS_UCX
async def test_a_cut_link_quarantines_until_the_life_line_has_ended(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx_landing, "SETTLE_S", 0.3)
    async with pair({"config": OVER_UCX}, {"config": OVER_UCX}) as (p, d):
        request = Request(p, d, tokens=23)
        for step in (request.open, request.expect, lambda: request.compute(9)):
            step()
        await eventually(lambda: p.transfer.stats().handovers.by_state["sending"] == 1)  # type: ignore[index]
        d.transfer.breached(p.epoch, "cut by the test")
        assert await request.ended() is Reason.PEER_LOST
        await eventually(lambda: quarantined(d.transfer) > 0)
        await eventually(lambda: quarantined(d.transfer) == 0)
        again = Request(p, d, tokens=23, attempt=2)
        for step in (again.open, again.expect, again.compute_all, again.draw):
            step()
        await again.landed()


def quarantined(decode: DecodeTransfer) -> int:
    return decode.stats().handovers.landing.by_state[SpanState.QUARANTINED]


@NEEDS_UCX
@pytest.mark.parametrize("spoilt", ["descriptor", "metadata"])
async def test_where_ucx_does_not_come_up_a_pair_that_may_uses_tcp(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, spoilt: str
) -> None:
    describe = ucx_landing.describe

    def wrong(agent: str, epoch: bytes, region: MemoryRange, probe: MemoryRange, data: bytes) -> bytes:
        if spoilt == "metadata":  # with a fitting digest: NIXL itself has to refuse it
            return describe(agent, epoch, region, probe, data[: len(data) // 2])
        return describe(agent, epoch, region, probe, data)[:-1]

    monkeypatch.setattr(ucx_landing, "describe", wrong)
    both = {"config": CALM, "transports": a_table(rdma=True, installed=True)}
    async with pair(both, both) as (p, d):
        p.transfer.discovered([Endpoint("127.0.0.1", d.transfer.port)])
        await eventually(lambda: p.transfer.stats().links == 1)
        request = Request(p, d, tokens=23)
        for step in (request.open, request.expect, request.compute_all, request.draw):
            step()
        await request.landed()
        assert d.transfer.stats().transports == {"tcp": 1}
        assert p.transfer.stats().dial_failures >= 1


@NEEDS_UCX
async def test_a_link_that_never_had_a_life_line_leaves_nothing_in_quarantine(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ucx_landing, "SETTLE_S", 0.1)
    monkeypatch.setattr(ucx_landing, "describe", lambda *_: b"no descriptor")
    config = replace(OVER_UCX, handshake_s=0.5)
    async with pair({"config": config}, {"config": config}) as (p, d):
        request = Request(p, d, tokens=23)
        for step in (request.open, request.expect, request.compute_all):
            step()
        await eventually(lambda: quarantined(d.transfer) > 0)
        await eventually(lambda: quarantined(d.transfer) == 0)
        assert await request.ended() is Reason.PEER_LOST


@NEEDS_UCX
async def test_heartbeats_go_on_while_much_is_written(pair: Pair) -> None:
    geometry = replace(GEOMETRY, head_dim=4_096)
    async with pair(
        {"geometry": geometry, "config": OVER_UCX},
        {"geometry": geometry, "config": OVER_UCX, "landing_bytes": 64 << 20},
    ) as (p, d):
        ends = time.monotonic() + 1.5
        attempt = 0
        while time.monotonic() < ends:
            attempt += 1
            request = Request(p, d, tokens=60, attempt=attempt)
            for step in (request.open, request.expect, request.compute_all, request.draw):
                step()
            await request.landed()
        assert p.transfer.stats().dial_failures == 0
        assert d.transfer.stats().links == 1


# What a pair agrees on ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "rdma", "installed", "names"),
    [
        (TransportChoice.AUTO, True, True, ("ucx", "tcp")),
        (TransportChoice.AUTO, False, True, ("tcp",)),
        (TransportChoice.AUTO, True, False, ("tcp",)),
        (TransportChoice.TCP, True, True, ("tcp",)),
        (TransportChoice.UCX, False, True, ("ucx",)),
    ],
)
def test_what_a_worker_offers(choice: TransportChoice, rdma: bool, installed: bool, names: tuple[str, ...]) -> None:
    assert tuple(row.name for row in offered(choice, a_table(rdma, installed))) == names


def a_table(rdma: bool, installed: bool) -> tuple[Transport, ...]:
    return (replace(UCX, suits=lambda: rdma, is_installed=lambda: installed), TCP)


def test_ucx_without_its_library_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="transport: ucx needs the extra `ucx`"):
        offered(TransportChoice.UCX, a_table(rdma=True, installed=False))


def test_a_pair_uses_the_decode_worker_s_first_that_both_have() -> None:
    assert agreed(("ucx", "tcp"), ("tcp", "ucx")) == "ucx"
    assert agreed(("ucx", "tcp"), ("tcp",)) == "tcp"
    with pytest.raises(UnfitPairError, match=r"transports: \['tcp'\] at the prefill worker, \['ucx'\]"):
        agreed(("ucx",), ("tcp",))


@pytest.mark.parametrize(("state", "is_active"), [("4: ACTIVE\n", True), ("1: DOWN\n", False), (None, False)])
def test_only_an_active_port_is_rdma(tmp_path: Path, state: str | None, is_active: bool) -> None:
    if state is not None:
        port = tmp_path / "mlx5_0" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "state").write_text(state)
    assert has_rdma(tmp_path) is is_active


# Descriptors ----------------------------------------------------------------------------------------------------------

EPOCH = b"e" * 16
DESCRIPTOR = UcxDescriptor(1, EPOCH, "baton-e", 1 << 40, 4_096, -1, 1 << 41, 64, b"opaque", digest(b"opaque"))


def test_a_descriptor_survives_the_way() -> None:
    assert unpack(pack(DESCRIPTOR), EPOCH, 4_096) == DESCRIPTOR


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "descriptor.version: 2 there, 1 here"),
        ({"epoch": b"f" * 16}, "descriptor.epoch"),
        ({"metadata": b"opaquf"}, "descriptor.metadata: does not match its digest"),
        ({"length": 4_095}, "descriptor.length: 4095"),
        ({"agent": "x" * 65}, "`agent`"),
        ({"metadata": b"m" * 60_001}, "`metadata`"),
    ],
)
def test_a_descriptor_that_is_not_this_peer_s_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(BadMessageError, match=message):
        unpack(pack(msgspec.structs.replace(DESCRIPTOR, **changes)), EPOCH, 4_096)


def test_no_altered_or_shortened_descriptor_gets_past_the_checks_unseen() -> None:
    packed = pack(DESCRIPTOR)
    for at in range(len(packed)):
        altered = bytearray(packed)
        altered[at] ^= 1
        for wrong in (bytes(altered), packed[:at]):
            try:
                descriptor = unpack(wrong, EPOCH, 4_096)
            except BadMessageError:
                continue
            assert descriptor.metadata == DESCRIPTOR.metadata
            assert descriptor.epoch == EPOCH


# Lanes and bandwidth --------------------------------------------------------------------------------------------------

TABLE = """\
[1.5] [vm:1:0]   | baton-x {place} cfg#{number}                    |
[1.5] [vm:1:0]   | remote memory write by ucp_put* from host memory to host |
[1.5] [vm:1:0]   +--------+-------------+--------------------------+
[1.5] [vm:1:0]   | Range  | Description |          Config          |
[1.5] [vm:1:0]   +--------+-------------+--------------------------+
[1.5] [vm:1:0]   |  0..92 | short       | rc_mlx5/mlx5_0:1         |
[1.5] [vm:1:0]   | 93..inf | zero-copy   | {lane}                  |
[1.5] [vm:1:0]   +--------+-------------+--------------------------+
[1.5] [vm:1:0]   | baton-x {place} cfg#{number}                    |
[1.5] [vm:1:0]   | active message by ucp_am_send* from host memory  |
[1.5] [vm:1:0]   | 0..inf | copy        | tcp/lo                   |"""


def test_the_log_of_a_long_life_takes_no_memory_and_its_complaints_no_log(caplog: pytest.LogCaptureFixture) -> None:
    descriptor = os.memfd_create("log")
    log = LaneLog(descriptor)
    for _ in range(20):
        os.write(descriptor, b"UCX  WARN  a stranger came\n" * 10_000)
        assert log.lane() == UNKNOWN
    assert os.fstat(descriptor).st_size > 20 * 200_000
    assert os.fstat(descriptor).st_blocks * 512 <= 64 << 10
    assert 1 <= caplog.text.count("a stranger came") <= 3
    os.close(descriptor)


def test_lanes_are_read_from_the_tables_of_large_writes() -> None:
    text = TABLE.format(place="inter-node", number=2, lane="50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1")
    text += "\n" + TABLE.format(place="self", number=0, lane="cma/memory")
    assert put_lanes(text.splitlines()) == {"inter-node cfg#2": "50% on rc_mlx5/mlx5_0:1 and 50% on rc_mlx5/mlx5_1:1"}
    assert put_lanes(["nothing", "| of the | kind |"]) == {}


async def test_bandwidth_is_bytes_over_time_and_unknown_when_writes_fail() -> None:
    loop = asyncio.get_running_loop()

    def steady(length: int, done: WriteDone) -> None:
        loop.call_later(0.005, done, None)

    def failing(length: int, done: WriteDone) -> None:
        loop.call_soon(done, "lost")

    def silent(length: int, done: WriteDone) -> None:
        """Never ends."""

    reached = await measure(steady, 0.02, 5.0)
    assert reached is not None
    assert 0 < reached < 2 * (4 << 20) / 0.005
    assert await measure(failing, 0.02, 5.0) is None
    assert await measure(silent, 0.02, 0.05) is None
    assert (is_below(None, 1.0), is_below(1.0, None), is_below(1.0, 2.0), is_below(2.0, 2.0)) == (
        None,
        None,
        True,
        False,
    )


async def test_every_pair_s_bandwidth_is_measured_over_tcp_too_and_is_no_kv(pair: Pair) -> None:
    slow = replace(FAST, min_bytes_per_s=1e15)
    async with pair({"config": slow}) as (p, d):
        request = Request(p, d, tokens=23)
        for step in (request.open, request.expect, request.compute_all, request.draw):
            step()
        await request.landed()
        await eventually(lambda: [pair.below_minimum for pair in p.transfer.stats().pairs] == [True])
        sent = 6 * GEOMETRY.block_bytes
        await eventually(lambda: p.transfer.stats().bytes_sent == d.transfer.stats().bytes_received == sent)
        assert p.transfer.stats().pairs[0].peer == f"127.0.0.1:{d.transfer.port}"
