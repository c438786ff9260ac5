"""Delivers arrived tokens in each tenant's own time: one tenant's tokens delay no other tenant's.

A frame of a worker has tokens of many tenants. They are sorted by request here, and each tenant's requests are served
by a callback in the context of one of them, so that the event loop charges the tenant for it. Without keys each source
counts as a tenant, as it does for the loop. Where a tenant falls behind, all tokens that came for a request meanwhile
are delivered together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable

from baton_gateway.requests.answer_flushes import AnswerFlushes
from baton_gateway.requests.live_request import LiveRequest
from baton_wire.fair_loop.charging import CHARGE
from baton_wire.messages.values import TokenEntry

TURN_S = 0.001
"""How long tokens of one tenant are delivered before other callbacks of the loop run."""
MAX_WAITING = 131_072
"""Entries that may wait before links are read on: some 40 MB, or 10 MB of those with log probabilities, which count
for several. A smaller bound is reached by one tenant's log probabilities, and then holds up all others."""
ENTRY_LOGPROBS_BYTES = 32
"""Bytes of log probabilities that count as one entry more: they take longer to deliver than plain ones."""
PART_SIZE = 128
"""The most that is delivered of one request before the time is looked at. One with 1,024 choices and log probabilities
brings 100 ms of work in a step of its worker."""

ArrivedEntry = tuple[bytes, TokenEntry]
"""The epoch of a worker, and what it sent."""


class _Arrived:
    """The entries that arrived for one request, and their weight."""

    __slots__ = ("entries", "size")

    def __init__(self, entries: list[ArrivedEntry], size: int) -> None:
        self.entries = entries
        self.size = size


class _Line:
    """The requests of one account with tokens to deliver, in order."""

    def __init__(self, flushes: AnswerFlushes) -> None:
        self.requests: deque[LiveRequest] = deque()
        self.flushes = flushes


class Deliveries:
    """Tokens that have arrived and are not delivered yet. `deliver` gets those of one request in their order."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[LiveRequest, list[ArrivedEntry]], None],
        open_tickets: Container[int],
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._open = open_tickets
        self._lines: dict[str, _Line] = {}
        """By the name of the account that they are charged to."""
        self._arrived: dict[int, _Arrived] = {}
        """By the ticket of a request."""
        self._num_waiting = 0

    @property
    def is_behind(self) -> bool:
        """True if so much waits that no more should be read."""
        return self._num_waiting > MAX_WAITING

    def add(self, live: LiveRequest, epoch: bytes, entry: TokenEntry) -> None:
        size = _size(entry)
        self._num_waiting += size
        if (arrived := self._arrived.get(live.ticket)) is not None:
            arrived.entries.append((epoch, entry))
            arrived.size += size
            return
        self._arrived[live.ticket] = _Arrived([(epoch, entry)], size)
        holder = _holder(live)
        line = self._lines.get(holder)
        if line is None:
            line = self._lines[holder] = _Line(AnswerFlushes(self._loop, self._open))
            self._schedule(holder, line, live)
        line.requests.append(live)

    def deliver_now(self, lives: Iterable[LiveRequest]) -> None:
        """Deliver what has arrived for these requests, before something else happens to them."""
        for live in lives:
            self._deliver_all(live)

    def _schedule(self, holder: str, line: _Line, live: LiveRequest) -> None:
        self._loop.call_soon(self._deliver_some, holder, line, context=live.context)

    def _deliver_some(self, holder: str, line: _Line) -> None:
        grown, until_s = line.flushes.schedule(), self._loop.time() + TURN_S
        try:
            while line.requests:
                live = line.requests.popleft()
                grown[live.ticket] = live  # also what `deliver_now` has delivered is still to be written out
                self._deliver_part(live, line)
                if line.requests and self._loop.time() > until_s:
                    break
        finally:  # an error of one request, which the loop reports, holds up no other
            if line.requests:
                self._schedule(holder, line, line.requests[0])
            else:
                del self._lines[holder]

    def _deliver_part(self, live: LiveRequest, line: _Line) -> None:
        """Deliver what has arrived for a request, or a part if that is much. Then the rest waits in the line."""
        arrived = self._arrived.get(live.ticket)
        if arrived is None or arrived.size <= PART_SIZE:
            self._deliver_all(live)
            return
        part, size = 0, 0
        while part < len(arrived.entries) and size < PART_SIZE:
            size += _size(arrived.entries[part][1])
            part += 1
        delivered, arrived.entries = arrived.entries[:part], arrived.entries[part:]
        arrived.size -= size
        self._num_waiting -= size
        if arrived.entries:
            line.requests.append(live)
        else:
            del self._arrived[live.ticket]
        self._deliver(live, delivered)

    def _deliver_all(self, live: LiveRequest) -> None:
        """Deliver what has arrived for a request, if anything has."""
        arrived = self._arrived.pop(live.ticket, None)
        if arrived is not None:
            self._num_waiting -= arrived.size
            self._deliver(live, arrived.entries)


def _holder(live: LiveRequest) -> str:
    charge = live.context.get(CHARGE)
    return live.tenant.name if charge is None else charge.account.name


def _size(entry: TokenEntry) -> int:
    return 1 if entry.logprobs is None else 1 + len(entry.logprobs) // ENTRY_LOGPROBS_BYTES
