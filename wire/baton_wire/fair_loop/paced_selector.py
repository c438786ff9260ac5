"""The selector of the fair event loop: it polls less often while callbacks are ready, and reports no descriptor for
which nothing can be done yet."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector, SelectorKey
from typing import Any

POLL_S = 0.0005
"""Least time between two polls while callbacks are ready. A poll costs as much as ten short callbacks. Rounds of a busy
loop are longer, so it polls after each."""


class PacedSelector(DefaultSelector):
    """A selector that does not poll for I/O again and again while callbacks are ready.

    A descriptor that is ready is reported by every poll until it is read. `pause` ends that for one descriptor, with
    epoll only: it stays registered here, and `get_key` and `get_map` still know it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._clock = clock
        self._polled_s = float("-inf")
        self._paused: set[int] = set()
        epoll: object = self._selector  # type: ignore[attr-defined]
        self._epoll = epoll if isinstance(epoll, select.epoll) else None

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        """Poll, unless nothing is waited for and the last poll was a moment ago."""
        if timeout is not None and timeout <= 0 and self._clock() - self._polled_s < POLL_S:
            return []
        events = super().select(timeout)
        self._polled_s = self._clock()
        return events

    def pause(self, fd: int) -> None:
        """Report nothing about a descriptor until `resume`, or until it is registered anew or for other events."""
        if self._epoll is not None and fd not in self._paused:
            self._epoll.unregister(fd)
            self._paused.add(fd)

    def resume(self, fd: int) -> None:
        """Report a descriptor again; one that is not paused stays as it is."""
        if fd in self._paused and self._epoll is not None:
            self._paused.remove(fd)
            events = self.get_map()[fd].events
            mask = (select.EPOLLIN if events & EVENT_READ else 0) | (select.EPOLLOUT if events & EVENT_WRITE else 0)
            with suppress(OSError):  # its descriptor was closed since
                self._epoll.register(fd, mask)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        if self._paused:
            self.resume(fileobj if isinstance(fileobj, int) else fileobj.fileno())
        return super().modify(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        key = super().unregister(fileobj)
        self._paused.discard(key.fd)
        return key
