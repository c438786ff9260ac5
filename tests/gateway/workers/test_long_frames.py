"""Long frames to a worker go out one by one: others get their turn in between."""

from __future__ import annotations

import asyncio

from baton_gateway.workers.links import LONG_FRAME_BYTES, ToWorker, write_out
from baton_testing.virtual_time.loop import run_virtual
from baton_wire.messages.codec import decode
from baton_wire.messages.gateway_link import Heartbeat, Reserve
from baton_wire.messages.values import PACKED_ID_BYTES, SamplingParams, pack_ids
from baton_wire.session import FRAME_MAC_BYTES, AlteredFrames, Session, SignedFrames


async def longest_run(tokens: int, messages: int) -> int:
    """The frames of prompts of this many tokens that are sent while another task waits for its turn."""
    outbox: asyncio.Queue[ToWorker] = asyncio.Queue()
    sent: list[bytes] = []

    async def send(frame: bytes) -> None:  # a peer that is quick: nothing is waited for
        sent.append(frame)

    async def receive() -> bytes:
        raise NotImplementedError

    frames = SignedFrames(send, receive, Session(bytes(32), bytes(32), AlteredFrames()))
    packed = pack_ids([7] * tokens)
    for number in range(messages):
        request = number.to_bytes(16)
        outbox.put_nowait(
            Reserve(request, 1, packed, tokens, (0,), SamplingParams(max_tokens=1), 1.0, "", None, request)
        )
    writing = asyncio.create_task(write_out(outbox, frames, 1.0, lambda message, refusal: None))
    most = before = 0
    while len(sent) < messages:
        await asyncio.sleep(0)
        most, before = max(most, len(sent) - before), len(sent)
    await asyncio.sleep(1.5)
    writing.cancel()
    assert isinstance(decode(sent[-1][:-FRAME_MAC_BYTES], Heartbeat), Heartbeat)
    return most


def test_between_two_long_frames_the_loop_turns() -> None:
    assert run_virtual(longest_run(LONG_FRAME_BYTES // PACKED_ID_BYTES, 20)) == 1


def test_short_frames_go_out_together() -> None:
    assert run_virtual(longest_run(10, 20)) == 20
