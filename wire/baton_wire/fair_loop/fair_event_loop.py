"""An asyncio event loop that runs ready callbacks in fair turns by account, in short rounds.

asyncio runs all ready callbacks in the order in which they came, and polls for I/O when all have run. So a client with
a thousand ready callbacks delays every other client by all of them, at each of the ten steps of a request. Here the
callback of the account that got the least time for its weight runs next, and a round ends after `ROUND_S`.

Only the queue of ready callbacks is replaced: `BaseEventLoop` appends to it, asks whether and how many it holds, pops
from its left and clears it. A test compares that with the installed Python. Callbacks of one account keep their order,
so those of a connection or a task do while its account stays the same. There is no order between accounts.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Handle
from collections import deque
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, BaseSelector, SelectorKey

from baton_wire.fair_loop.charging import CHARGE
from baton_wire.fair_loop.fair_queue import Account, ServiceQueue

ROUND_S = 0.002
"""How long callbacks run before I/O is polled. A callback that has begun runs to its end."""
ROUND_CALLBACKS = 256
"""The most callbacks of one round."""


class _Skipped:
    """Stands for a callback when a round ends early: the loop skips what is cancelled."""

    _cancelled = True


_SKIPPED = _Skipped()


class ReadyCallbacks:
    """The loop's ready callbacks, with the methods of a deque that `BaseEventLoop` uses.

    Other threads append. All else happens in the loop's thread.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._arrived: deque[Handle] = deque()
        self.append = self._arrived.append
        self._queue: ServiceQueue[Handle] = ServiceQueue()
        self._own: Account[Handle] = Account("process", is_service=True)
        """The account of the process itself."""
        self._taken_s: float | None = None
        """When the callback that runs now began."""
        self._until_s = 0.0
        """When this round ends."""
        self._polled: set[Handle] = set()
        """Callbacks of descriptors that wait here: a later poll reports the same descriptor again."""

    def __bool__(self) -> bool:
        self._settle()  # asked before the loop waits for I/O
        return bool(self._arrived) or bool(self._queue)

    def __len__(self) -> int:
        """Begin a round: the most callbacks that it may run."""
        self._until_s = self._settle() + ROUND_S
        self._sort()
        return min(ROUND_CALLBACKS, len(self._queue))

    def popleft(self) -> Handle | _Skipped:
        """The callback to run now. After `ROUND_S` the round is over."""
        now, queue = self._clock(), self._queue
        if self._taken_s is not None:
            queue.charge(now - self._taken_s)
            self._taken_s = None
        if self._arrived:
            self._sort()
        if now > self._until_s or not queue:
            return _SKIPPED
        handle = queue.take()
        if self._polled and handle in self._polled:
            self._polled.remove(handle)
        self._taken_s = now
        return handle

    def clear(self) -> None:
        self._arrived.clear()
        self._queue.clear()
        self._polled.clear()
        self._taken_s = None

    def append_polled(self, handle: Handle) -> None:
        """Append the callback of a ready descriptor, unless it waits already."""
        if handle not in self._polled:
            self._polled.add(handle)
            self._arrived.append(handle)

    def _settle(self) -> float:
        """Charge the callback that ran last. Returns the time."""
        now = self._clock()
        if self._taken_s is not None:
            self._queue.charge(now - self._taken_s)
            self._taken_s = None
        return now

    def _sort(self) -> None:
        """Queue what has arrived, also during this round: an account that got little need not wait for its end."""
        arrived, add = self._arrived, self._queue.add
        while arrived:
            handle = arrived.popleft()
            charge = handle._context.get(CHARGE)  # type: ignore[attr-defined]
            add(self._own if charge is None else charge.account, handle)


class FairEventLoop(asyncio.SelectorEventLoop):
    """A selector event loop with `ReadyCallbacks`."""

    _ready: ReadyCallbacks

    def __init__(self, selector: BaseSelector | None = None) -> None:
        super().__init__(selector)
        self._ready = ReadyCallbacks()

    def _process_events(self, event_list: list[tuple[SelectorKey, int]]) -> None:
        """Queue the callbacks of ready descriptors. As in `BaseSelectorEventLoop`, but each callback once."""
        for key, mask in event_list:
            reader, writer = key.data
            if mask & EVENT_READ and reader is not None:
                if reader._cancelled:
                    self._remove_reader(key.fileobj)  # type: ignore[attr-defined]
                else:
                    self._ready.append_polled(reader)
            if mask & EVENT_WRITE and writer is not None:
                if writer._cancelled:
                    self._remove_writer(key.fileobj)  # type: ignore[attr-defined]
                else:
                    self._ready.append_polled(writer)
