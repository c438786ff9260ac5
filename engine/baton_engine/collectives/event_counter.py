"""A count that crosses processes: one process adds to it, another takes it, and the kernel orders both."""

from __future__ import annotations

import os
import select
from typing import Self

_LONGEST_POLL_S = 3_600.0


class EventCounter:
    """An eventfd. What its giver wrote into shared memory before `add` is seen by its taker after `take`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    @classmethod
    def create(cls) -> Self:
        return cls(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))

    def add(self, count: int = 1) -> None:
        os.eventfd_write(self.descriptor, count)

    def take(self) -> int:
        """Take what was added since the last call; 0 without waiting when nothing was."""
        try:
            return os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return 0

    def wait(self, timeout_s: float) -> int:
        """Take what was added, after a wait of at most `timeout_s` for something; 0 when nothing came."""
        if self._poll.poll(min(timeout_s, _LONGEST_POLL_S) * 1_000):
            return self.take()
        return 0

    def close(self) -> None:
        """Close the descriptor; no effect when it is closed."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
