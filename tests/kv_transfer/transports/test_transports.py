"""One conformance suite for every transport: what a writer and a landing side promise, whatever carries the bytes."""

from __future__ import annotations

import random
import secrets
import socket
from contextlib import AbstractAsyncContextManager

import pytest

from baton_kv_transfer.layout import Extent
from baton_kv_transfer.network import require_socket
from baton_kv_transfer.transports import tcp
from baton_kv_transfer.transports.seam import Write
from baton_testing.kv_transfer.builders import eventually
from baton_testing.kv_transfer.nixl import NEEDS_UCX
from baton_testing.kv_transfer.transport_rigs import CANARY, P1, P2, REGION, Rig, TcpRig, running
from baton_testing.wire.sessions import data_connections

GUARDED = ["tcp", "tcp, 3 lanes", "memory"]
SELF_COUNTING = [*GUARDED, "one-sided"]
"""Their landing side sees bytes arrive. With UCX it does not; what is sealed is counted, see test_ucx_transfer.py."""
ALL = [*SELF_COUNTING, pytest.param("ucx", marks=NEEDS_UCX)]


class Ends:
    """Records how a write ended; more than one end would show."""

    def __init__(self) -> None:
        self.ends: list[str | None] = []

    def __call__(self, detail: str | None) -> None:
        self.ends.append(detail)


def open_rig(name: str) -> AbstractAsyncContextManager[Rig]:
    return running(name)


@pytest.mark.parametrize("name", ALL)
async def test_bytes_stand_where_they_were_granted_when_done_is_called(name: str) -> None:
    async with open_rig(name) as rig:
        (span,) = rig.guard.landing.grant(1, P1, 4_000, 1_000)
        source = memoryview(bytearray(secrets.token_bytes(8_000)))
        write = Write(1, source, (Extent(5_000, 1_500), Extent(100, 2_500)), (Extent(span.offset, 4_000),))
        ends = Ends()
        rig.writer().write(write, ends)
        assert ends.ends == []
        await rig.settle()
        assert ends.ends == [None]
        assert (
            rig.region[span.offset : span.offset + 4_000] == source[5_000:6_500].tobytes() + source[100:2_600].tobytes()
        )
        assert set(rig.region[span.offset + 4_000 :]) == {CANARY}
        if name in SELF_COUNTING:
            assert rig.landing.bytes_received == 4_000
        if name in GUARDED:
            assert rig.guard.landing.first_gap(1) is None


@pytest.mark.parametrize("name", ALL)
async def test_many_writes_over_several_spans_all_arrive(name: str) -> None:
    shuffled = random.Random(7)
    async with open_rig(name) as rig:
        (span,) = rig.guard.landing.grant(1, P1, 40_000, 1_000)
        source = memoryview(bytearray(secrets.token_bytes(40_000)))
        starts = list(range(0, 40_000, 1_000))
        shuffled.shuffle(starts)
        writer, ends = rig.writer(), [Ends() for _ in starts]
        for start, end in zip(starts, ends, strict=True):
            halves = (Extent(span.offset + start, 300), Extent(span.offset + start + 300, 700))
            writer.write(Write(1, source, (Extent(start, 1_000),), halves), end)
        await rig.settle()
        assert [end.ends for end in ends] == [[None]] * len(starts)
        assert rig.region[span.offset : span.offset + 40_000] == source.tobytes()
        if name in SELF_COUNTING:
            assert rig.landing.bytes_received == 40_000


@pytest.mark.parametrize("name", SELF_COUNTING)
async def test_the_sender_counts_the_payload_bytes_that_the_receiver_counts(name: str) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 8_000, 1_000)
        writer = rig.writer()
        source = memoryview(bytearray(3_000))
        writer.write(Write(1, source, (Extent(0, 3_000),), (Extent(0, 1_000), Extent(4_000, 2_000))), Ends())
        assert writer.bytes_sent == 0
        await rig.settle()
        assert writer.bytes_sent == rig.landing.bytes_received == 3_000
        rig.guard.landing.release(1, writes_may_follow=True)
        writer.write(Write(1, source, (Extent(0, 500),), (Extent(1_000, 500),)), Ends())
        await rig.settle()
        assert writer.bytes_sent == rig.landing.bytes_received == 3_500
        writer.close("the test ended")
        assert writer.bytes_sent == 3_500


@pytest.mark.parametrize("name", GUARDED)
async def test_what_the_receiver_refuses_counts_as_sent_at_neither_side(name: str) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 1_000, 1_000)
        writer, ends = rig.writer(), Ends()
        source = memoryview(bytearray(2_000))
        writer.write(Write(1, source, (Extent(0, 2_000),), (Extent(0, 1_000), Extent(2_000, 1_000))), ends)
        await eventually_settled(rig, ends)
        assert ends.ends[0] is not None
        assert writer.bytes_sent <= rig.landing.bytes_received <= 1_000


@pytest.mark.parametrize("name", ALL)
async def test_an_empty_write_is_done(name: str) -> None:
    async with open_rig(name) as rig:
        ends = Ends()
        rig.writer().write(Write(1, memoryview(b""), (), ()), ends)
        await rig.settle()
        assert ends.ends == [None]


@pytest.mark.parametrize("name", ALL)
async def test_unequal_lengths_are_refused_at_once(name: str) -> None:
    async with open_rig(name) as rig:
        with pytest.raises(ValueError, match="3 source bytes for 4 landing bytes"):
            rig.writer().write(Write(1, memoryview(b"abc"), (Extent(0, 3),), (Extent(0, 4),)), Ends())


@pytest.mark.parametrize("name", GUARDED)
@pytest.mark.parametrize(
    ("case", "peer", "transfer", "offset", "length"),
    [
        ("past the span", P1, 1, 1_000, 1_001),
        ("before the span", P1, 2, 0, 100),
        ("outside the region", P1, 1, REGION - 10, 100),
        ("far outside", P1, 1, 1 << 47, 100),
        ("a transfer that does not exist", P1, 9, 0, 100),
        ("another worker's transfer", P2, 1, 0, 100),
    ],
)
async def test_a_write_outside_the_grant_changes_no_byte_and_ends_the_connection(
    name: str, case: str, peer: bytes, transfer: int, offset: int, length: int
) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 2_000, 1_000)
        rig.guard.landing.grant(2, P1, 2_000, 1_000)
        ends = Ends()
        source = memoryview(bytearray(length))
        rig.writer(peer).write(Write(transfer, source, (Extent(0, length),), (Extent(offset, length),)), ends)
        await eventually_settled(rig, ends)
        assert ends.ends[0] is not None, case
        assert len(ends.ends) == 1
        assert set(rig.region) == {CANARY}
        assert [breach[0] for breach in rig.guard.breaches] == [peer]
        assert len(rig.lost) == 1


@pytest.mark.parametrize("name", GUARDED)
async def test_no_byte_is_written_twice_in_a_transfer(name: str) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 2_000, 1_000)
        writer, first, second = rig.writer(), Ends(), Ends()
        writer.write(Write(1, memoryview(bytearray(1_000)), (Extent(0, 1_000),), (Extent(0, 1_000),)), first)
        await rig.settle()
        other = memoryview(bytearray(b"\xff" * 1_000))
        writer.write(Write(1, other, (Extent(0, 1_000),), (Extent(999, 1_000),)), second)
        await eventually_settled(rig, second)
        assert first.ends == [None]
        assert second.ends[0] is not None
        assert rig.region[:1_000] == bytes(1_000)
        assert set(rig.region[1_000:]) == {CANARY}


@pytest.mark.parametrize("name", GUARDED)
async def test_a_revoked_transfer_is_swallowed_and_others_go_on(name: str) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 2_000, 1_000)
        rig.guard.landing.grant(2, P1, 2_000, 1_000)
        rig.guard.landing.release(1, writes_may_follow=True)
        writer, revoked, other = rig.writer(), Ends(), Ends()
        writer.write(Write(1, memoryview(bytearray(2_000)), (Extent(0, 2_000),), (Extent(0, 2_000),)), revoked)
        writer.write(Write(2, memoryview(bytearray(2_000)), (Extent(0, 2_000),), (Extent(2_048, 2_000),)), other)
        await rig.settle()
        assert (revoked.ends, other.ends) == ([None], [None])
        assert set(rig.region[:2_048]) == {CANARY}
        assert set(rig.region[2_048:4_048]) == {0}
        assert rig.guard.breaches == []


@pytest.mark.parametrize("name", ALL)
async def test_closing_ends_every_open_write_once(name: str) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 50_000, 1_000)
        writer, ends = rig.writer(), [Ends() for _ in range(50)]
        source = memoryview(bytearray(1_000))
        for index, end in enumerate(ends):
            writer.write(Write(1, source, (Extent(0, 1_000),), (Extent(index * 1_000, 1_000),)), end)
        writer.close("cut by the test")
        late = Ends()
        writer.write(Write(1, source, (Extent(0, 1_000),), (Extent(0, 1_000),)), late)
        await rig.settle()
        writer.close("again")
        await rig.settle()
        assert [end.ends for end in ends] == [["cut by the test"]] * 50
        assert late.ends == ["the link is closed"]
        assert rig.lost == []


@pytest.mark.parametrize("name", GUARDED)
async def test_dropping_a_peer_stops_its_writes_and_tells_the_writer(name: str) -> None:
    async with open_rig(name) as rig:
        rig.guard.landing.grant(1, P1, 50_000, 1_000)
        rig.guard.landing.grant(2, P2, 1_000, 1_000)
        writer, other, ends, others = rig.writer(P1), rig.writer(P2), Ends(), Ends()
        source = memoryview(bytearray(50_000))
        writer.write(Write(1, source, (Extent(0, 50_000),), (Extent(0, 50_000),)), ends)
        rig.landing.link_down(P1, 1, lambda: True)
        other.write(Write(2, source, (Extent(0, 1_000),), (Extent(50_176, 1_000),)), others)
        await eventually_settled(rig, ends)
        await eventually_settled(rig, others)
        assert set(rig.region[:50_000]) == {CANARY}
        assert ends.ends[0] is not None
        assert others.ends == [None]
        assert len(rig.lost) == 1


@pytest.mark.parametrize("name", ["one-sided", pytest.param("ucx", marks=NEEDS_UCX)])
async def test_a_one_sided_write_lands_after_the_link_was_cut(name: str) -> None:
    async with open_rig(name) as rig:
        writer, ends = rig.writer(), Ends()
        writer.write(Write(1, memoryview(bytearray(100)), (Extent(0, 100),), (Extent(0, 100),)), ends)
        writer.close("cut")
        await rig.settle()
        assert ends.ends == ["cut"]
        assert set(rig.region[:100]) == {0}


async def test_a_write_half_way_when_revoked_touches_no_further_byte() -> None:
    rig = TcpRig(1)
    ours, theirs = data_connections()
    here, sign = require_socket(ours.connection).socket, ours.session.sign
    rig.tcp_landing.attach(theirs, P1)
    rig.guard.landing.grant(1, P1, 4_000, 1_000)
    here.sendall(sign(tcp.PUT.pack(tcp.PUT_MAGIC, 1, 1, 0, 4_000)) + bytes(1_500))
    await eventually(lambda: rig.region[1_499] == 0)
    rig.guard.landing.release(1, writes_may_follow=True)
    rig.guard.landing.grant(2, P2, 4_000, 1_000)
    here.sendall(bytes(2_500) + sign(tcp.PUT.pack(tcp.PUT_MAGIC, 2, 1, 0, 10)) + bytes(10))
    await eventually(lambda: rig.landing.bytes_received == 4_010)
    assert set(rig.region[1_500:]) == {CANARY}
    here.setblocking(True)
    acks = [ours.session.verify(here.recv(tcp.ACK_BYTES, socket.MSG_WAITALL)) for _ in range(2)]
    assert [tcp.ACK.unpack(ack) for ack in acks] == [(tcp.ACK_MAGIC, 1), (tcp.ACK_MAGIC, 2)]
    here.close()
    rig.close()


@pytest.mark.parametrize("garbage", [b"\0" * tcp.PUT_BYTES, b"GET / HTTP/1.1\r\nHost: decode\r\n\r\n" + bytes(64)])
async def test_garbage_on_a_data_connection_ends_it(garbage: bytes) -> None:
    rig = TcpRig(1)
    ours, theirs = data_connections()
    here = require_socket(ours.connection).socket
    rig.tcp_landing.attach(theirs, P1)
    here.sendall(garbage)
    await eventually(lambda: rig.guard.breaches)
    assert rig.tcp_landing.lanes == 0
    assert set(rig.region) == {CANARY}
    here.close()


@pytest.mark.parametrize("garbage", [b"XXXX" + bytes(8), tcp.ACK.pack(tcp.ACK_MAGIC, 77)])
@pytest.mark.parametrize("is_signed", [True, False], ids=["signed", "without a MAC"])
async def test_a_false_acknowledgement_loses_the_connection(garbage: bytes, is_signed: bool) -> None:
    ours, theirs = data_connections()
    lost: list[str] = []
    writer = tcp.TcpWriter([ours], lost.append)
    await theirs.connection.send(theirs.session.sign(garbage) if is_signed else garbage + bytes(16))
    await eventually(lambda: lost)
    writer.close("the test ended")
    theirs.close()


HEADER_BITS = range(0, 8 * tcp.PUT_BYTES, 7)


@pytest.mark.parametrize("bit", HEADER_BITS)
async def test_no_altered_header_of_a_put_moves_a_byte(bit: int) -> None:
    """Neither another put's number, transfer, offset nor length, nor a wait for bytes that never come."""
    rig = TcpRig(1)
    ours, theirs = data_connections()
    rig.tcp_landing.attach(theirs, P1)
    rig.guard.landing.grant(1, P1, 4_000, 1_000)
    header = bytearray(ours.session.sign(tcp.PUT.pack(tcp.PUT_MAGIC, 1, 1, 0, 100)))
    header[bit // 8] ^= 1 << bit % 8
    await ours.connection.send(bytes(header) + bytes(100))
    await eventually(lambda: rig.guard.breaches)
    assert set(rig.region) == {CANARY}
    assert rig.tcp_landing.lanes == 0
    ours.close()


async def eventually_settled(rig: Rig, ends: Ends) -> None:
    for _ in range(200):
        await rig.settle()
        if ends.ends:
            break
    await rig.settle()
