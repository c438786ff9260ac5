"""Interruptions: when this gateway process did not run, and when a worker sent nothing.

They explain time that no process accounts for otherwise: a stopped process, a node without a free CPU, a long
collection of garbage, a cut link.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

STALLED_S = 0.03
"""A timer of the event loop that fires this late shows a stall."""
MAX_KEPT = 128
"""Interruptions that a process remembers."""
MAX_OF_REQUEST = 8
"""The longest interruptions that the trail of a request keeps."""
BUSY, NOT_RUN = "its event loop was busy", "its process did not run: stopped, or without a CPU"


class Interruption(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One interruption. Times are seconds of the event loop's clock."""

    from_s: float
    until_s: float
    worker: bytes = b""
    """The silent worker; empty: it was this process."""
    text: str = ""


class Interruptions:
    """The latest interruptions of one process and of its workers."""

    def __init__(self, used_s: Callable[[], float] = time.thread_time) -> None:
        """`used_s`: the CPU seconds of the loop's thread so far."""
        self._latest: deque[Interruption] = deque(maxlen=MAX_KEPT)
        self._used_s = used_s
        self._due: tuple[float, float] | None = None

    def expect(self, due_s: float) -> None:
        """Note when the loop's next timer is to fire. It does so by calling `fired`."""
        self._due = due_s, self._used_s()

    def fired(self, at_s: float) -> None:
        """Note that the timer fired. If that was late, the loop stood still."""
        if (stall := self._stall(at_s)) is not None:
            self._latest.append(stall)
        self._due = None

    def _stall(self, now: float) -> Interruption | None:
        """Return the stall that ends now, or that the loop has just left: its timer may not have fired yet."""
        if self._due is None or now - self._due[0] < STALLED_S:
            return None
        due_s, used_s = self._due
        text = BUSY if self._used_s() - used_s >= (now - due_s) / 2 else NOT_RUN
        return Interruption(due_s, now, b"", text)

    def silent(self, worker: bytes, from_s: float, until_s: float) -> None:
        """Note that a worker sent nothing for longer than it may."""
        self._latest.append(Interruption(from_s, until_s, worker))

    def during(self, from_s: float, until_s: float, workers: Iterable[bytes]) -> list[Interruption]:
        """Return the longest interruptions from `from_s` until now of this process and of the workers, in order of
        time."""
        known, stall = {b"", *workers}, self._stall(until_s)
        matches = [stop for stop in self._latest if stop.until_s > from_s and stop.worker in known]
        matches += [] if stall is None else [stall]
        longest = sorted(matches, key=lambda stop: stop.from_s - stop.until_s)[:MAX_OF_REQUEST]
        return sorted(longest, key=lambda stop: stop.from_s)


class Pause(msgspec.Struct, frozen=True):
    """An interruption in nanoseconds since the beginning of a request."""

    start: int
    end: int
    worker: bytes = b""
    text: str = ""
    whole: tuple[int, int] = (0, 0)
    """From when to when the interruption lasted that it is a piece of."""


def place_pauses(stops: Sequence[Interruption], began_s: float) -> list[Pause]:
    """Return interruptions as pauses, in order of time. What a worker was silent for while this process did not run
    counts as time of this process alone, which read nothing then.

    >>> stops = [Interruption(1.0, 3.0, b"w"), Interruption(2.0, 2.5)]
    >>> [(pause.start, pause.end, pause.worker) for pause in place_pauses(stops, 1.0)]
    [(0, 1000000000, b'w'), (1000000000, 1500000000, b''), (1500000000, 2000000000, b'w')]
    """
    pauses = []
    for stop in stops:
        start, end = round((stop.from_s - began_s) * 1e9), round((stop.until_s - began_s) * 1e9)
        pauses.append(Pause(start, end, stop.worker, stop.text, (start, end)))
    own = [pause for pause in pauses if not pause.worker]
    return sorted(
        [*own, *(piece for pause in pauses if pause.worker for piece in _without(pause, own))],
        key=lambda pause: pause.start,
    )


def _without(pause: Pause, others: Iterable[Pause]) -> list[Pause]:
    """Return the pieces of a pause that no other one covers."""
    pieces = [pause]
    for other in others:
        pieces = [
            Pause(start, end, pause.worker, pause.text, pause.whole)
            for piece in pieces
            for start, end in ((piece.start, min(piece.end, other.start)), (max(piece.start, other.end), piece.end))
            if end > start
        ]
    return pieces


def overlap(pause: Pause, start: int, end: int) -> int:
    """Return the nanoseconds of a pause between two times."""
    return max(0, min(pause.end, end) - max(pause.start, start))
