"""Writes out answers of one tenant that grew: once for all frames of a turn, many spread over several turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container

from baton_gateway.requests.live_request import LiveRequest

FLUSH_S = 0.002
"""How long answers are written before other callbacks of the loop run."""


class AnswerFlushes:
    """Answers with increments that are not written out yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop, open_tickets: Container[int]) -> None:
        """`open_tickets`: requests that have not ended. The end of a request writes out the rest of its answer, and its
        connection may serve another request by then.
        """
        self._loop = loop
        self._open = open_tickets
        self._pending: dict[int, LiveRequest] = {}

    def schedule(self) -> dict[int, LiveRequest]:
        """Flush soon. Returns the requests to flush by ticket, for the caller to add to."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        return self._pending

    def _flush(self) -> None:
        """Flush as many as fit into one turn of the loop, and schedule the others."""
        lives, until_s = deque(self._pending.values()), self._loop.time() + FLUSH_S
        self._pending = {}
        try:
            while lives:
                live = lives.popleft()
                if live.ticket in self._open:
                    live.writer.flush()
                if self._loop.time() > until_s:
                    break
        finally:  # an error of one answer, which the loop reports, holds up no other
            if lives:
                self._pending = {live.ticket: live for live in lives}
                self._loop.call_soon(self._flush)
