"""The control link: framing, order, bounds, heartbeats, and how it ends."""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable

import msgpack
import pytest

from baton_kv_transfer import link as link_module
from baton_kv_transfer.link import PairLink
from baton_kv_transfer.network import SocketConnection, Sockets
from baton_testing.kv_transfer.builders import eventually, first_tokens
from baton_testing.wire.sessions import sessions
from baton_wire.errors import BadFieldsError, BadMessageError, LinkLostError
from baton_wire.handshake import Channel, LinkIdentity, LinkRole
from baton_wire.liveness import LivenessConfig, PeerState
from baton_wire.messages.codec import encode
from baton_wire.messages.flood import MOST_BAD_MESSAGES
from baton_wire.messages.pair_link import Heartbeat, PairMessage, Seal, Wait
from baton_wire.messages.values import MAX_FRAME_BYTES
from baton_wire.session import Session

PEER = LinkIdentity(LinkRole.PREFILL, b"p" * 16, 1, "k1", Channel.CONTROL)
ID = secrets.token_bytes(16)


class Peer:
    """The other end of a link, frame by frame."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        sock.setblocking(False)
        self.socket, self.sign = sock, session.sign
        self.send, self.close = sock.send, sock.close

    def length(self, value: int) -> bytes:
        return self.sign(struct.pack("!I", value))

    def framed(self, message: PairMessage) -> bytes:
        frame = encode(message)
        return self.length(len(frame)) + self.sign(frame)


def pair(heartbeat_s: float = 0.02, dead_s: float = 0.2) -> tuple[PairLink, Peer]:
    here, there = socket.socketpair()
    ours, theirs = sessions()
    liveness = LivenessConfig(suspect_s=dead_s / 2, dead_s=dead_s)
    return PairLink(SocketConnection(here), PEER, ours, heartbeat_s=heartbeat_s, liveness=liveness), Peer(there, theirs)


def both_ends(heartbeat_s: float, liveness: LivenessConfig | None = None) -> list[PairLink]:
    ends = zip(socket.socketpair(), sessions(), strict=True)
    return [
        PairLink(SocketConnection(end), PEER, session, heartbeat_s=heartbeat_s, liveness=liveness)
        for end, session in ends
    ]


def wait(position: int) -> Wait:
    return Wait(request=ID, attempt=1, position=position)


def read_all(there: socket.socket) -> None:
    while there.recv(1 << 16):
        pass


async def test_messages_arrive_once_and_in_order_both_ways() -> None:
    links = both_ends(0.01)
    got: list[list[PairMessage]] = [[], []]
    runs = [asyncio.create_task(link.run(seen.append)) for link, seen in zip(links, got, strict=True)]
    seal = Seal(request=ID, attempt=1, transfer=1, checksums=bytes(3 << 20), first_tokens=first_tokens(0))
    for position in range(200):
        links[0].send(wait(position))
        links[1].send(wait(1_000 + position))
    links[0].send(seal)
    await eventually(lambda: seal in got[1])
    await eventually(lambda: wait(1_199) in got[0])
    assert [m for m in got[1] if not isinstance(m, Heartbeat)] == [*map(wait, range(200)), seal]
    assert [m for m in got[0] if not isinstance(m, Heartbeat)] == [wait(1_000 + n) for n in range(200)]
    links[0].close("enough")
    assert await runs[0] == "enough"
    # It reads the end, or a heartbeat of its own was written before.
    assert (await runs[1]).startswith(("LinkLostError", "BrokenPipeError", "ConnectionResetError"))
    assert all(link.state is PeerState.DEAD for link in links)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda peer: peer.length(0), "length 0"),
        (lambda peer: peer.length(0xFFFFFFFF), "length 4294967295"),
        (lambda peer: peer.length(MAX_FRAME_BYTES + 1), f"length {MAX_FRAME_BYTES + 1}"),
        (lambda peer: peer.length(3) + peer.sign(b"\xc1\xc1\xc1"), "BadMessageError"),
        (lambda peer: b"GET / HTTP/1.1\r\nHost: decode\r\n", "AlteredFrameError"),
        (lambda peer: struct.pack("!I", 6) + bytes(22), "AlteredFrameError"),
    ],
    ids=["nothing", "4 GiB", "over the cap", "no msgpack", "HTTP", "no MAC"],
)
async def test_what_is_no_message_closes_the_link(write: Callable[[Peer], bytes], named: str) -> None:
    link, there = pair()
    there.send(write(there))
    assert named in await link.run(lambda message: None)
    assert await _at_end(there.socket)


@pytest.mark.parametrize("bit", range(0, 8 * 62, 5))
async def test_a_flipped_bit_anywhere_in_a_frame_closes_the_link_at_once(bit: int) -> None:
    link, there = pair(dead_s=60.0)
    frame = bytearray(there.framed(wait(7)))
    frame[bit // 8 % len(frame)] ^= 1 << bit % 8
    there.send(bytes(frame))
    got: list[PairMessage] = []
    assert "AlteredFrameError" in await asyncio.wait_for(link.run(got.append), 10.0)
    assert got == []
    there.close()


async def test_frames_left_out_repeated_or_swapped_close_the_link() -> None:
    for order in ([1, 2], [0, 0], [1, 0], [0, 2]):
        link, there = pair(dead_s=60.0)
        frames = [there.framed(wait(place)) for place in range(3)]
        there.send(b"".join(frames[place] for place in order))
        got: list[PairMessage] = []
        assert "AlteredFrameError" in await asyncio.wait_for(link.run(got.append), 10.0)
        assert got == [wait(0)][: order[0] == 0]
        there.close()


async def test_a_message_that_its_reader_refuses_closes_the_link() -> None:
    link, there = pair()
    there.send(there.framed(wait(1)))

    def refuse(message: PairMessage) -> None:
        raise BadMessageError("Wait: not a prefill worker's message")

    assert "not a prefill worker's message" in await link.run(refuse)
    there.close()


async def test_a_silent_peer_is_dead_within_the_bound_although_the_connection_stands() -> None:
    link, there = pair(dead_s=0.15)
    assert "silent" in await asyncio.wait_for(link.run(lambda message: None), 20.0)
    assert link.state is PeerState.DEAD
    there.close()


async def test_silence_is_judged_when_its_bound_has_come_and_not_with_the_next_heartbeat() -> None:
    link, there = pair(heartbeat_s=60.0, dead_s=0.15)
    assert "silent" in await asyncio.wait_for(link.run(lambda message: None), 20.0)
    there.close()


async def test_who_is_given_up_for_silence_hears_it_although_it_acknowledges_nothing() -> None:
    """A FIN waits behind what fills the peer's receive buffer; an RST does not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname())
        here, _ = server.accept()
    link = PairLink(SocketConnection(here), PEER, sessions()[0], heartbeat_s=60.0, liveness=LivenessConfig(0.1, 0.2))
    for _ in range(6):
        link.send(Seal(request=ID, attempt=1, transfer=1, checksums=bytes(3 << 20), first_tokens=first_tokens(0)))
    assert "silent" in await asyncio.wait_for(link.run(lambda message: None), 20.0)
    with pytest.raises(ConnectionResetError):
        read_all(there)
    there.close()


async def test_heartbeats_keep_an_idle_link() -> None:
    links = both_ends(0.05, LivenessConfig(0.75, 1.5))
    runs = [asyncio.create_task(link.run(lambda message: None)) for link in links]
    await asyncio.sleep(3.5)
    assert [link.state for link in links] == [PeerState.LIVE, PeerState.LIVE]
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)


async def test_a_peer_that_does_not_read_is_cut_before_memory_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "MAX_QUEUED_BYTES", 10_000)
    link, there = pair(dead_s=5.0)
    run = asyncio.create_task(link.run(lambda message: None))
    for _ in range(1_000):
        link.send(wait(1))
    assert "does not read" in await run
    link.send(wait(2))
    there.close()


async def test_a_peer_that_hangs_up_is_seen_at_once() -> None:
    link, there = pair(dead_s=30.0)
    there.close()
    assert "LinkLostError" in await asyncio.wait_for(link.run(lambda message: None), 20.0)


async def test_exchanging_hellos_reports_a_lost_peer() -> None:
    link, there = pair()
    there.close()
    with pytest.raises(LinkLostError):
        await link.receive()
    link.close("never ran")
    await link.run(lambda message: None)


async def test_dialling_nobody_is_an_os_error() -> None:
    with pytest.raises(OSError, match=r"refused|Connect"):
        await Sockets().connect("127.0.0.1", 1)


async def _at_end(sock: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    try:
        while await asyncio.wait_for(loop.sock_recv(sock, 4_096), 60.0):
            continue
    except ConnectionError:
        pass
    sock.close()
    return True


async def ends_while(link: PairLink, there: Peer, what: Callable[[], bytes], *, every_s: float) -> str:
    """Why the link ends while its peer sends these bytes again and again."""
    run = asyncio.create_task(link.run(lambda message: None))
    async with asyncio.timeout(60):
        while not run.done():
            there.send(what())
            await asyncio.sleep(every_s)
    there.close()
    return await run


async def test_a_frame_that_never_gets_whole_is_no_sign_of_life() -> None:
    """After a length that is too great every heartbeat only fills the frame."""
    link, there = pair()
    there.send(there.length(1 << 16))
    assert "silent" in await ends_while(link, there, lambda: there.framed(Heartbeat()), every_s=0.01)


async def test_a_peer_that_trickles_a_frame_is_given_up() -> None:
    link, there = pair()
    got: list[PairMessage] = []
    run = asyncio.create_task(link.run(got.append))
    async with asyncio.timeout(60):
        for byte in there.framed(wait(5)):
            if not run.done():
                there.send(bytes([byte]))
                await asyncio.sleep(0.02)
        assert "silent" in await run
    assert got == []
    there.close()


async def test_a_large_frame_may_take_its_time() -> None:
    """Longer than a silence may last, as long as it comes faster than the slowest rate."""
    link, there = pair(dead_s=1.0)
    checksums = bytes(3_000_000)  # for which there are three seconds
    seal = there.framed(Seal(request=ID, attempt=1, transfer=1, checksums=checksums, first_tokens=first_tokens(0)))
    got: list[PairMessage] = []
    run = asyncio.create_task(link.run(got.append))
    for start in range(0, len(seal), 150_000):
        await asyncio.get_running_loop().sock_sendall(there.socket, seal[start : start + 150_000])
        await asyncio.sleep(0.06)
    await eventually(lambda: len(got) == 1)
    there.close()
    await run


async def test_bad_fields_are_refused_one_by_one_and_leave_the_link() -> None:
    link, there = pair(dead_s=60.0)
    got: list[PairMessage] = []
    refused: list[BadFieldsError] = []
    run = asyncio.create_task(link.run(got.append, refused.append))
    bad = msgpack.packb([3, ID, 1, 1 << 63])
    there.send(there.length(len(bad)) + there.sign(bad) + there.framed(wait(7)))
    await eventually(lambda: got == [wait(7)])
    assert [(refusal.message, refusal.request, refusal.attempt) for refusal in refused] == [("Wait", ID, 1)]
    there.send(b"".join(there.length(len(bad)) + there.sign(bad) for _ in range(MOST_BAD_MESSAGES)))
    assert "bad messages within" in await run
    there.close()


async def test_a_message_that_the_peer_would_refuse_is_not_sent_and_the_link_stays() -> None:
    link, there = pair()
    with pytest.raises(BadFieldsError, match="position"):
        link.send(wait(-1))
    assert not link.is_closed
    assert not link._frames
    link.close("enough")
    assert await link.run(lambda message: None) == "enough"
    there.close()
