"""An asyncio event loop on virtual time: what sleeps an hour is awake at once, in the same order every time.

`loop.time()` is the virtual time in seconds, that of an event heap. Several loops may share one heap, each of them a
thread of a simulated process: one can be held, as a stopped process is, and buried, as a killed one is. What is posted
from another thread comes later, in order. What runs on a helper thread takes time. Nothing here may wait for sockets,
threads or processes.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

from baton_testing.virtual_time.event_heap import EventHeap

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Call = Callable[[*Ts], object]
LAST_ROUNDS = 50
"""Turns that cancelled tasks get to end in."""
TICK_S = 1e-6
EXPECTED = (OSError, EOFError, TimeoutError)


class DeadlockError(RuntimeError):
    """Everything waits, and no timer will wake anything."""


class VirtualLoop(asyncio.BaseEventLoop):
    def __init__(
        self,
        heap: EventHeap,
        *,
        expected: tuple[type[BaseException], ...] = EXPECTED,
        post_s: Callable[[], float] = lambda: 0.0,
        aside_s: Callable[[], float] = lambda: 0.0,
        on_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`expected`: errors with which a task may end; any other leaves the heap's `run` at once.

        `post_s`, `aside_s`: how long a word to this thread and a call on its helper thread take. `on_turn` is told
        before anything runs.
        """
        self._is_due = self._is_held = self._is_buried = False
        super().__init__()
        self._heap = heap
        self._expected = expected
        self._post_s, self._aside_s, self._on_turn = post_s, aside_s, on_turn
        self._waiting: deque[asyncio.Handle] = deque()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._posted_s = self._aside_until_s = 0.0

    # Life -------------------------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Nothing runs until `let_go`; timers that come due meanwhile fire then."""
        self._is_held = True

    def let_go(self) -> None:
        self._is_held = False
        self._turn()

    def bury(self) -> None:
        """The process is dead. Its tasks end here and now; whatever they touch must be deaf by then."""
        with self.entered():
            for task in list(self._tasks):
                task.cancel()
            for _ in range(LAST_ROUNDS):
                for _ in range(len(self._waiting)):
                    self._run(self._waiting.popleft(), is_over=True)
        self._is_buried = True
        self._waiting.clear()
        self._tasks.clear()
        self.close()

    @contextmanager
    def entered(self) -> Generator[None]:
        """Inside, this is the running loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    def _turn_soon(self) -> None:
        if not self._is_due and not self._is_held and self._waiting:
            self._is_due = True
            self._heap.after(0.0, self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if self._is_held or self._is_buried:
            return
        self._on_turn()
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(len(self._waiting)):
                self._run(self._waiting.popleft())
        finally:
            events._set_running_loop(before)
        self._turn_soon()

    def _run(self, handle: asyncio.Handle, is_over: bool = False) -> None:
        if handle.cancelled():
            return
        context, callback, arguments = handle._context, handle._callback, handle._args  # type: ignore[attr-defined]
        try:
            context.run(callback, *arguments)
        except Exception:
            if not is_over:
                raise

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, self._expected):
            raise error

    # Of an event loop -------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._heap.now

    def is_running(self) -> bool:
        return not self._is_buried and events._get_running_loop() is self

    def skip(self, seconds: float) -> None:
        """Move the clock, never backwards."""
        self._heap.now += max(seconds, 0.0)

    def call_soon(self, callback: Call[*Ts], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_buried:
            self._waiting.append(handle)
            self._turn_soon()
        return handle

    def call_soon_threadsafe(self, callback: Call[*Ts], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._posted_s = max(self._posted_s + 1e-6, self._heap.now + self._post_s())
        self._heap.after(self._posted_s - self._heap.now, lambda: self._fire(handle))
        return handle

    def call_later(
        self, delay: float, callback: Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """The clock ticks: who waits for less than a tick again and again would stand still for ever."""
        return self.call_at(self._heap.now + max(delay, TICK_S), callback, *args, context=context)

    def call_at(
        self, when: float, callback: Call[*Ts], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if when != float("inf"):
            self._heap.after(when - self._heap.now, lambda: self._fire(handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled handle stays in the heap and does nothing there."""

    def _fire(self, handle: asyncio.Handle) -> None:
        if handle.cancelled() or self._is_buried:
            return
        self._waiting.append(handle)
        if not self._is_due:
            self._is_due = True
            self._turn()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """One call after another, as one helper thread runs them."""
        future: asyncio.Future[T] = self.create_future()
        self._aside_until_s = max(self._aside_until_s + 1e-6, self._heap.now + self._aside_s())

        def run() -> None:
            if self._is_buried or future.cancelled():
                return
            try:
                result = func(*args)
            except AssertionError:
                raise
            except Exception as error:  # noqa: BLE001 - as an executor does
                future.set_exception(error)
            else:
                future.set_result(result)

        self._heap.after(self._aside_until_s - self._heap.now, run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore errors of dropped tasks: `_ended` has reported them."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop and a time of its own. Raises DeadlockError instead of hanging."""
    heap = EventHeap(seed=0)
    loop = VirtualLoop(heap, expected=(BaseException,))
    try:
        with loop.entered():
            task = loop.create_task(main)
        while not task.done():
            if not heap.step():
                raise DeadlockError("nothing is ready and no timer is set")
        return task.result()
    finally:
        loop.bury()
