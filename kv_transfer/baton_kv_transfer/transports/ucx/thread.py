"""The thread that owns a UCX agent: posts writes and watches them, so that the transfer's loop never waits in a call.

A loop orders writes and is notified of their ends. While writes are under way the thread looks at them with pauses that
grow from microseconds to a millisecond; while there are none it sleeps on a lock and uses no processor time at all.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.ucx.binding import Piece, UcxAgent, UcxError, WriteState

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENT_PAUSE_S = 20e-6, 1e-3, 20e-3
PATIENCE_S = 2.0
"""Writes that have been under way for so long are looked at rarely: their peer is paused, or gone unnoticed."""
STOP_S = 2.0
PR_SET_TIMERSLACK, TIMER_SLACK_NS = 29, 1_000
"""By default Linux wakes a sleeper up to 50 µs late, which is a PUT of 16 MiB between two GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class WriteOrder:
    """One write to one peer."""

    peer: str
    pieces: Callable[[], Sequence[Piece]]
    """Asked on the UCX thread: so the loop is through with many orders soon, and the first begins."""
    source_device: int | None
    target_device: int | None
    unregistered: MemoryRange | None
    """Source memory to register for this write alone."""
    on_end: Callable[[WriteState | UcxError], None]
    """Called once, on this thread; an error means that nothing was started."""


@dataclass(slots=True, eq=False)
class _Open:
    order: WriteOrder
    handle: int
    registered: object | None


class UcxThread:
    """Owns the agent that `make` builds, from `start` to `stop`."""

    def __init__(self, make: Callable[[], UcxAgent]) -> None:
        self._make = make
        self._calls: deque[Callable[[UcxAgent], object]] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._open: list[_Open] = []
        self._thread = threading.Thread(target=self._run, name="baton-ucx", daemon=True)
        self._ready: Future[None] = Future()

    async def start(self, timeout_s: float = 30.0) -> None:
        """Build the agent. Raises UcxError, also when that takes too long."""
        self._thread.start()
        try:
            await asyncio.wait_for(asyncio.wrap_future(self._ready), timeout_s)
        except TimeoutError:
            raise UcxError(f"UCX did not start within {timeout_s:g} s") from None

    async def stop(self) -> bool:
        """End the thread and its agent, and with it every write; False when it hangs in UCX and is abandoned."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, STOP_S)
            if self._thread.is_alive():
                log.warning("the UCX thread does not end; the process will end it")
                return False
        return True

    async def run(self, call: Callable[[UcxAgent], T], timeout_s: float = 10.0) -> T:
        """Run `call` on the thread. Raises what it raises, and UcxError when it takes too long."""
        future: Future[T] = Future()

        def run(agent: UcxAgent) -> None:
            try:
                result = call(agent)
            except UcxError as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._order(run)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), timeout_s)
        except TimeoutError:
            raise UcxError(f"UCX did not answer within {timeout_s:g} s") from None

    def later(self, call: Callable[[UcxAgent], object]) -> None:
        """Run `call`, which must not raise, on the thread some time."""
        self._order(call)

    def write(self, order: WriteOrder) -> None:
        """Start a write; orders to one peer are posted in the order in which they were given."""
        self._order(lambda agent: self._post(agent, order))

    def _order(self, call: Callable[[UcxAgent], object]) -> None:
        with self._changed:
            self._calls.append(call)
            self._changed.notify()

    # On the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            agent = self._make()
        except UcxError as error:
            self._ready.set_exception(error)
            return
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS, 0, 0, 0)  # this thread's; refused is harmless
        self._ready.set_result(None)
        pause, moved_s = FIRST_PAUSE_S, time.monotonic()
        while (calls := self._next_calls()) is not None:
            for call in calls:
                call(agent)
            if self._collect(agent) or calls:
                pause, moved_s = FIRST_PAUSE_S, time.monotonic()
            elif self._open:
                time.sleep(pause)
                is_stuck = time.monotonic() - moved_s > PATIENCE_S
                pause = min(pause * 1.3, PATIENT_PAUSE_S if is_stuck else LONGEST_PAUSE_S)

    def _next_calls(self) -> list[Callable[[UcxAgent], object]] | None:
        """Calls that were ordered meanwhile; waits for one if nothing else is under way. None: stop."""
        with self._changed:
            while not self._calls and not self._open and not self._is_stopping:
                self._changed.wait()
            if self._is_stopping:
                return None
            calls = list(self._calls)
            self._calls.clear()
            return calls

    def _post(self, agent: UcxAgent, order: WriteOrder) -> None:
        registered = None
        try:
            if order.unregistered is not None:
                registered = agent.register(order.unregistered)
            handle, state = agent.post(order.peer, order.pieces(), order.source_device, order.target_device)
        except (UcxError, ValueError) as error:
            if registered is not None:
                agent.deregister(registered)
            order.on_end(error if isinstance(error, UcxError) else UcxError(str(error)))
            return
        opened = _Open(order, handle, registered)
        if state is WriteState.PENDING:
            self._open.append(opened)
        else:
            self._end(agent, opened, state)

    def _collect(self, agent: UcxAgent) -> bool:
        """Tell the writes that ended; whether there were any."""
        still: list[_Open] = []
        ended: list[tuple[_Open, WriteState]] = []
        for opened in self._open:
            state = agent.state(opened.handle)
            if state is WriteState.PENDING:
                still.append(opened)
            else:
                ended.append((opened, state))
        self._open = still
        for opened, state in ended:
            self._end(agent, opened, state)
        return bool(ended)

    def _end(self, agent: UcxAgent, opened: _Open, state: WriteState) -> None:
        agent.release(opened.handle)
        if opened.registered is not None:
            agent.deregister(opened.registered)
        opened.order.on_end(state)
