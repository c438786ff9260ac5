"""When the turns of a load are due: each some time after the turns before it, and no more sessions than users. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from baton_simulate.sessions.session_load import SessionLoad


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """How many sessions and requests run at once; None: all that are due."""

    users: int | None = None
    """Sessions at once. The next one begins when one has ended."""
    in_flight: int | None = None
    """Requests at once, of all sessions; the others wait in order."""
    think_scale: float = 1.0
    """Factor for think times and pauses."""
    time_scale: float = 1.0
    """Factor for the times before which turns are not sent."""
    duration_s: float | None = None
    """Turns that are due later are not sent, nor those that wait for them."""


class TurnOrder:
    """The turns of a load that have not ended, for a caller that has the clock and sends them."""

    def __init__(self, load: SessionLoad, limits: LoopLimits) -> None:
        self._load, self._limits = load, limits
        self._waits_for = [len(set(turn.after)) for turn in load.turns]
        self._next: list[list[int]] = [[] for _ in load.turns]
        self._sessions: dict[int, list[int]] = {}
        for place, turn in enumerate(load.turns):
            self._sessions.setdefault(turn.session, []).append(place)
            for before in set(turn.after):
                self._next[before].append(place)
        self._left = {session: len(places) for session, places in self._sessions.items()}
        self._coming = deque(self._sessions)
        """Sessions that have not begun."""
        self._left_out: set[int] = set()
        """Turns that are due after the end, and those that wait for them."""
        self._in_flight = 0
        self._ready: deque[int] = deque()
        """Turns that are due, for which there is no slot."""

    def begin(self) -> list[tuple[float, int]]:
        """The first turns: (when it is due, its place) each."""
        users = len(self._coming) if self._limits.users is None else self._limits.users
        due: list[tuple[float, int]] = []
        for _ in range(min(users, len(self._coming))):
            if not self._coming:  # sessions that are due after the end left their users to later ones
                break
            over: list[int] = []
            self._place_session(0.0, due, over)
            due += [entry for place in over for entry in self._follow(place, 0.0)]
        return due

    @property
    def is_over(self) -> bool:
        """True when every turn has ended or was left out."""
        return not any(self._left.values())

    def may_send(self, place: int) -> bool:
        """A turn is due. True: it is sent now. False: it waits until `ended` returns it."""
        if self._limits.in_flight is not None and self._in_flight >= self._limits.in_flight:
            self._ready.append(place)
            return False
        self._in_flight += 1
        return True

    def ended(self, place: int, now: float) -> list[tuple[float, int]]:
        """The answer of a turn that was sent has ended; returns the turns that are due now or later because of it."""
        self._in_flight -= 1
        due = self._follow(place, now)
        if self._ready and (self._limits.in_flight is None or self._in_flight < self._limits.in_flight):
            due.append((now, self._ready.popleft()))
        return due

    def _follow(self, place: int, now: float) -> list[tuple[float, int]]:
        """The turns that are due because this one is over. Those that would be due after the end are over, too."""
        due: list[tuple[float, int]] = []
        over = [place]
        while over:
            place = over.pop()
            for following in self._next[place]:
                self._waits_for[following] -= 1
                if not self._waits_for[following]:
                    self._place_turn(following, now, due, over)
            session = self._load.turns[place].session
            self._left[session] -= 1
            if not self._left[session] and self._limits.users is not None and self._coming:
                self._place_session(now, due, over)
        return due

    def _place_session(self, now: float, due: list[tuple[float, int]], over: list[int]) -> None:
        for place in self._sessions[self._coming.popleft()]:
            if not self._load.turns[place].after:
                self._place_turn(place, now, due, over)

    def _place_turn(self, place: int, now: float, due: list[tuple[float, int]], over: list[int]) -> None:
        """Add a turn to those that are due, with its time, or to those that are over."""
        turn, limits = self._load.turns[place], self._limits
        due_s = max(turn.at_s * limits.time_scale, now + turn.think_s * limits.think_scale)
        is_late = limits.duration_s is not None and due_s > limits.duration_s
        if is_late or not self._left_out.isdisjoint(turn.after):
            self._left_out.add(place)
            over.append(place)
        else:
            due.append((due_s, place))
