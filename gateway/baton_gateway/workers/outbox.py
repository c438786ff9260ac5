"""The messages that wait to be sent over a worker's link, and the task that sends them.

One timer serves all waits for a message: a request has some three of them, and a timer for each costs more than the
message does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from baton_wire.errors import BadFieldsError
from baton_wire.messages.codec import encode
from baton_wire.messages.encoding import Encode
from baton_wire.messages.gateway_link import (
    AskCachedPlaces,
    Cancel,
    Flip,
    Heartbeat,
    Holding,
    Prefill,
    Reserve,
    Retarget,
)
from baton_wire.session import SignedFrames

MAX_MESSAGES = 65_536
LONG_FRAME_BYTES = 32 << 10
"""A prompt of 8,192 tokens: some 0.1 ms to encode, sign, mask and hand to the kernel. Others get a turn in between."""

ToWorker = Prefill | Reserve | Encode | Retarget | Cancel | Flip | Holding | AskCachedPlaces


class LinkOutbox:
    """Messages in the order in which they are sent. One task takes them."""

    def __init__(self) -> None:
        self._messages: deque[ToWorker] = deque()
        self._waiter: asyncio.Future[bool] | None = None
        self._waits_since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def put(self, message: ToWorker) -> bool:
        """Add a message; False: there are too many."""
        if len(self._messages) >= MAX_MESSAGES:
            return False
        self._messages.append(message)
        self._wake(True)
        return True

    async def take(self, heartbeat_s: float) -> ToWorker | Heartbeat:
        """Take the next message. Without one for `heartbeat_s`, that is a heartbeat."""
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._waiter, self._waits_since_s = loop.create_future(), loop.time()
            if self._timer is None:
                self._timer = loop.call_later(heartbeat_s, self._look, heartbeat_s)
            if not await self._waiter:
                return Heartbeat()
        return self._messages.popleft()

    def close(self) -> None:
        """End the timer: no message will be taken."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, heartbeat_s: float) -> None:
        """End a wait that is over by now, and come again when the present one is."""
        loop, self._timer = asyncio.get_running_loop(), None
        if self._waiter is None or self._waiter.done():
            return  # the next wait begins another timer
        due_s = self._waits_since_s + heartbeat_s
        if due_s <= loop.time():
            self._wake(False)
        else:
            self._timer = loop.call_at(due_s, self._look, heartbeat_s)

    def _wake(self, has_message: bool) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(has_message)


async def write_out(
    outbox: LinkOutbox,
    frames: SignedFrames,
    heartbeat_s: float,
    on_unsent: Callable[[ToWorker, BadFieldsError], None],
) -> None:
    """Send the messages of the outbox, and a heartbeat after `heartbeat_s` without one. `on_unsent` gets messages that
    their receiver would refuse."""
    try:
        while True:
            message = await outbox.take(heartbeat_s)
            try:
                frame = encode(message)
            except BadFieldsError as refusal:
                assert not isinstance(message, Heartbeat)
                on_unsent(message, refusal)
                continue
            await frames.send(frame)
            if len(frame) > LONG_FRAME_BYTES:  # sending waits for slow peers only, and there may be many
                await asyncio.sleep(0)
    finally:
        outbox.close()
