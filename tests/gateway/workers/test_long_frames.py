"""Messages to a worker go out in order, long ones one by one, and heartbeats where none does."""

from __future__ import annotations

import asyncio

import pytest

from baton_gateway.workers.outbox import LONG_FRAME_BYTES, MAX_MESSAGES, LinkOutbox, write_out
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.codec import decode
from baton_wire.messages.gateway_link import Cancel, Heartbeat, Reserve
from baton_wire.messages.values import PACKED_ID_BYTES, SamplingParams, pack_ids
from baton_wire.session import FRAME_MAC_BYTES, AlteredFrames, Session, SignedFrames


async def longest_run(tokens: int, messages: int) -> int:
    """The frames of prompts of this many tokens that are sent while another task waits for its turn."""
    outbox = LinkOutbox()
    sent: list[bytes] = []

    async def send(frame: bytes) -> None:  # a peer that is quick: nothing is waited for
        sent.append(frame)

    async def receive() -> bytes:
        raise NotImplementedError

    frames = SignedFrames(send, receive, Session(bytes(32), bytes(32), AlteredFrames()))
    packed = pack_ids([7] * tokens)
    for number in range(messages):
        request = number.to_bytes(16)
        outbox.put(Reserve(request, 1, packed, tokens, (0,), SamplingParams(max_tokens=1), 1.0, "", None, request))
    writing = asyncio.create_task(write_out(outbox, frames, 1.0, lambda message, refusal: None))
    most = before = 0
    while len(sent) < messages:
        await asyncio.sleep(0)
        most, before = max(most, len(sent) - before), len(sent)
    await asyncio.sleep(1.5)
    writing.cancel()
    assert isinstance(decode(sent[-1][:-FRAME_MAC_BYTES], Heartbeat), Heartbeat)
    return most


async def heartbeats_and_messages() -> tuple[list[float], list[float]]:
    """When heartbeats and messages went out. Messages are put at 0.3, 0.6, 0.9 and 2.0 s."""
    outbox, began_s = LinkOutbox(), asyncio.get_running_loop().time()
    beats: list[float] = []
    messages: list[float] = []

    async def send(frame: bytes) -> None:
        sent = decode(frame[:-FRAME_MAC_BYTES], Heartbeat | Cancel)
        (beats if isinstance(sent, Heartbeat) else messages).append(asyncio.get_running_loop().time() - began_s)

    async def receive() -> bytes:
        raise NotImplementedError

    frames = SignedFrames(send, receive, Session(bytes(32), bytes(32), AlteredFrames()))
    writing = asyncio.create_task(write_out(outbox, frames, 0.5, lambda message, refusal: None))
    for wait_s in (0.3, 0.3, 0.3, 1.1):
        await asyncio.sleep(wait_s)
        assert outbox.put(Cancel(bytes(16), 1))
    await asyncio.sleep(0.6)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    return beats, messages


def test_a_heartbeat_follows_every_half_second_without_a_message_and_no_shorter_one() -> None:
    beats, messages = run_virtual(heartbeats_and_messages())
    assert messages == pytest.approx([0.3, 0.6, 0.9, 2.0])
    assert beats == pytest.approx([1.4, 1.9, 2.5])


async def filled() -> bool:
    outbox = LinkOutbox()
    while len(outbox._messages) < MAX_MESSAGES:
        assert outbox.put(Cancel(bytes(16), 1))
    return outbox.put(Cancel(bytes(16), 1))


def test_an_outbox_takes_no_more_than_its_bound() -> None:
    assert not run_virtual(filled())


def test_between_two_long_frames_the_loop_turns() -> None:
    assert run_virtual(longest_run(LONG_FRAME_BYTES // PACKED_ID_BYTES, 20)) == 1


def test_short_frames_go_out_together() -> None:
    assert run_virtual(longest_run(10, 20)) == 20
