"""Long frames travel in parts over connections that keep frames apart: each is a sign of life."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from baton_testing.virtual_time.loop import run_virtual
from baton_testing.wire.sessions import sessions
from baton_wire.errors import AlteredFrameError, BadMessageError
from baton_wire.liveness import Liveness, LivenessConfig, PeerState
from baton_wire.messages.values import MAX_FRAME_BYTES
from baton_wire.session import IS_LAST, MAX_SIGNED_BYTES, MORE_FOLLOWS, PART_BYTES, FrameParts, SignedFrames, parts


@pytest.mark.parametrize(
    "size", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, 3 * PART_BYTES + 7, MAX_FRAME_BYTES]
)
def test_a_frame_of_any_size_is_put_together_again(size: int) -> None:
    frame = (b"\xc1\0\xc1\1" * (size // 4 + 1))[:size] if size > PART_BYTES else b"\x91" * size
    received = FrameParts(MAX_FRAME_BYTES)
    cut = list(parts(frame))
    assert [received.add(part) for part in cut] == [*[None] * (len(cut) - 1), frame]
    assert max(map(len, cut)) < MAX_SIGNED_BYTES - 16
    assert received.add(b"\x90") == b"\x90"


def test_no_more_is_gathered_than_the_longest_frame() -> None:
    received = FrameParts(PART_BYTES + 10)
    received.add(MORE_FOLLOWS + bytes(PART_BYTES))
    with pytest.raises(BadMessageError, match=f"its parts exceed {PART_BYTES + 10} bytes"):
        received.add(IS_LAST + bytes(11))


def test_a_frame_within_another_is_refused() -> None:
    received = FrameParts(MAX_FRAME_BYTES)
    received.add(MORE_FOLLOWS + b"x")
    with pytest.raises(BadMessageError, match="before all parts"):
        received.add(b"\x90")


def test_over_a_slow_network_a_long_frame_keeps_its_link_alive() -> None:
    """6 MiB at 1 MB/s take six seconds, more than twice what makes a silent peer dead."""

    async def transfer() -> set[PeerState]:
        loop = asyncio.get_running_loop()
        ours, theirs = sessions()
        wire: deque[bytes] = deque()
        alive, states = Liveness(LivenessConfig(1.5, 2.5), loop.time()), set()

        async def send(data: bytes) -> None:
            await asyncio.sleep(len(data) / 1e6)
            wire.append(data)

        async def receive() -> bytes:
            while not wire:
                await asyncio.sleep(0.05)
                states.add(alive.state(loop.time()))
            return wire.popleft()

        sender = SignedFrames(send, receive, ours)
        receiver = SignedFrames(send, receive, theirs)
        sending = asyncio.create_task(sender.send(bytes(MAX_FRAME_BYTES)))
        frame = await receiver.receive(lambda: alive.heard(loop.time()))
        await sending
        assert len(frame) == MAX_FRAME_BYTES
        return states

    assert run_virtual(transfer()) == {PeerState.LIVE}


async def test_each_part_has_its_mac_and_place() -> None:
    ours, theirs = sessions()
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    async def receive() -> bytes:
        return sent.pop(0)

    await SignedFrames(send, receive, ours).send(bytes(3 * PART_BYTES))
    sent[1], sent[0] = sent[0], sent[1]
    with pytest.raises(AlteredFrameError):
        await SignedFrames(send, receive, theirs).receive()
