"""An asyncio event loop that runs ready callbacks in fair turns by account, in short rounds.

asyncio runs all ready callbacks in the order in which they came, and polls for I/O when all have run. So a client with
a thousand ready callbacks delays every other client by all of them, at each of the ten steps of a request. Here the
callback of the account that got the least time for its weight runs next. A round ends after `ROUND_S`.

Only the queue of ready callbacks is replaced: `BaseEventLoop` appends to it, asks whether and how many it holds, pops
from its left and clears it. It is given one callback for all of a round. A test compares that with the installed
Python. Callbacks of one account keep their order, so those of a connection or a task do while its account stays the
same. There is no order between accounts.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Handle
from collections import deque
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey

from baton_wire.fair_loop.charging import CHARGE
from baton_wire.fair_loop.fair_queue import Account, FairQueue
from baton_wire.fair_loop.paced_selector import PacedSelector

ROUND_S = 0.002
"""How long callbacks run before I/O is polled. A callback that has begun runs to its end."""
ROUND_CALLBACKS = 256
"""The most callbacks of one round."""


class ReadyCallbacks:
    """The loop's ready callbacks, with the methods of a deque that `BaseEventLoop` uses. It sees one callback for each
    round: `RoundHandle`, which runs those of the round.

    Other threads append. All else happens in the loop's thread.
    """

    def __init__(
        self, resume: Callable[[int], None] = lambda fd: None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """`resume` makes the selector report a descriptor again."""
        self._resume = resume
        self._clock = clock
        self._arrived: deque[Handle] = deque()
        self.append = self._arrived.append
        self._queue: FairQueue[Handle] = FairQueue()
        self._own: Account[Handle] = Account("process", is_service=True)
        """The account of the process itself."""
        self._polled: dict[Handle, int | None] = {}
        """Callbacks of descriptors that wait here: a later poll reports the same descriptor again. With the descriptor
        if the selector does not report it until the callback has run."""
        self._round = RoundHandle(self.run_round)
        self._is_last_round = False

    def __bool__(self) -> bool:
        return bool(self._arrived) or bool(self._queue)

    def __len__(self) -> int:
        return 1 if self else 0

    def popleft(self) -> RoundHandle:
        return self._round

    def clear(self) -> None:
        self._arrived.clear()
        self._queue.clear()
        self._polled.clear()

    def append_polled(self, handle: Handle, fd: int) -> bool:
        """Append the callback of a ready descriptor; False: it waits already, so the descriptor need not be reported
        until it has run."""
        if handle not in self._polled:
            self._polled[handle] = None
            self._arrived.append(handle)
            return True
        self._polled[handle] = fd
        return False

    def run_round(self) -> int:
        """Run as many callbacks as wait now, perhaps others that arrive meanwhile, until `ROUND_S` is over. Returns how
        many ran."""
        clock, arrived, queue, polled, ran = self._clock, self._arrived, self._queue, self._polled, 0
        take, charge, add, own, resume = queue.take, queue.charge, queue.add, self._own, self._resume
        self._sort()
        began_s = clock()
        until_s = began_s + ROUND_S
        for _ in range(min(ROUND_CALLBACKS, len(queue))):
            handle = take()
            if polled and (paused_fd := polled.pop(handle, None)) is not None:
                resume(paused_fd)
            if not handle._cancelled:
                handle._run()
                ran += 1
                now = clock()
                charge(now - began_s)
                if now >= until_s:
                    break
                began_s = now
            while arrived and not self._is_last_round:  # as `_sort`: this runs for nearly every callback
                arrival = arrived.popleft()
                holder = arrival._context.get(CHARGE)  # type: ignore[attr-defined]
                add(own if holder is None else holder.account, arrival)
        self._is_last_round = False
        return ran

    def end_soon(self) -> None:
        """Run in this round, or in the next one if none has begun, only what waits already."""
        self._sort()
        self._is_last_round = True

    def _sort(self) -> None:
        """Queue what has arrived, also during a round: an account that got little need not wait for its end."""
        arrived, add = self._arrived, self._queue.add
        while arrived:
            handle = arrived.popleft()
            charge = handle._context.get(CHARGE)  # type: ignore[attr-defined]
            add(self._own if charge is None else charge.account, handle)


class RoundHandle:
    """A round of the loop, as a handle that `BaseEventLoop` runs."""

    _cancelled = False
    _callback = None
    """`BaseEventLoop` in debug mode writes it about a slow handle."""
    _source_traceback = None

    def __init__(self, run: Callable[[], object]) -> None:
        self._run = run

    def __repr__(self) -> str:
        return "<a round of callbacks>"


class FairEventLoop(asyncio.SelectorEventLoop):
    """A selector event loop with `ReadyCallbacks` and a `PacedSelector`."""

    _ready: ReadyCallbacks
    _selector: PacedSelector

    def __init__(self, selector: PacedSelector | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` measures callbacks."""
        super().__init__(PacedSelector(clock) if selector is None else selector)
        self._ready = ReadyCallbacks(self._selector.resume, clock)

    def stop(self) -> None:
        """Stop after this round, which runs what is ready now and no later callback. What a round is too short for
        waits for the next run."""
        self._ready.end_soon()
        super().stop()

    def _process_events(self, event_list: list[tuple[SelectorKey, int]]) -> None:
        """Queue the callbacks of ready descriptors. As in `BaseSelectorEventLoop`, but each callback once.

        The selector reports no descriptor a third time while its callback waits. With thousands that wait, polls took
        as much time as the callbacks.
        """
        append_polled = self._ready.append_polled
        for key, mask in event_list:
            reader, writer = key.data
            is_new = True
            if mask & EVENT_READ and reader is not None:
                if reader._cancelled:
                    self._remove_reader(key.fileobj)  # type: ignore[attr-defined]
                else:
                    is_new = append_polled(reader, key.fd)
            if mask & EVENT_WRITE and writer is not None:
                if writer._cancelled:
                    self._remove_writer(key.fileobj)  # type: ignore[attr-defined]
                else:
                    is_new = append_polled(writer, key.fd) and is_new
            if not is_new:
                self._selector.pause(key.fd)
