"""When a silent peer is suspected and when it is given up: pure, with the time passed in."""

from __future__ import annotations

import enum
from dataclasses import dataclass

REPORT_S = 0.1
"""A worker reports its state to gateways at least this often."""
LOOKS = 3
"""Looks per `suspect_s` that a watcher promises; Baton's watchers look twice as often."""


class PeerState(enum.StrEnum):
    LIVE = "live"
    SUSPECT = "suspect"
    """No new work to it."""
    DEAD = "dead"
    """Give it up; what it had is retried elsewhere."""


@dataclass(frozen=True, slots=True)
class LivenessConfig:
    """Seconds of silence until a peer is suspected, and until it is dead.

    >>> LivenessConfig(suspect_s=3.0, dead_s=2.5)
    Traceback (most recent call last):
    ValueError: suspect_s: 3.0 must be positive and at most dead_s 2.5
    """

    suspect_s: float = 1.5
    dead_s: float = 2.5
    """Less than the 3 s within which a death must be acted on: the watcher may get a processor late."""
    watched_s: float | None = None
    """Seconds of a silence that must have been watched, not slept through, before the peer is dead. None: all of it.
    Less bounds how late a death is seen, at the price of another link after a stall of the whole machine."""

    def __post_init__(self) -> None:
        if not 0 < self.suspect_s <= self.dead_s:
            raise ValueError(f"suspect_s: {self.suspect_s} must be positive and at most dead_s {self.dead_s}")
        if self.watched_s is not None and not 0 < self.watched_s <= self.dead_s:
            raise ValueError(f"watched_s: {self.watched_s} must be positive and at most dead_s {self.dead_s}")


DEFAULT_LIVENESS = LivenessConfig()


class Liveness:
    """Silence of one peer. Any authenticated frame counts as a sign of life.

    >>> gateway = Liveness(LivenessConfig(suspect_s=1.5, dead_s=2.5), now=0.0)
    >>> gateway.heard(now=0.4)
    >>> [gateway.state(now).value for now in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)]
    ['live', 'live', 'live', 'suspect', 'suspect', 'dead']

    A gap in our own watching (this process was stopped or starved) is not held against the peer. A watcher that looks
    later than `LOOKS` times per `suspect_s` stood still for the rest of the gap and may have missed frames, so the rest
    does not count as watched silence. After a gap of `suspect_s` watching begins anew at the next look.

    >>> stopped = Liveness(LivenessConfig(suspect_s=1.5, dead_s=2.5), now=0.0)
    >>> stopped.state(now=60.0).value
    'live'
    """

    def __init__(self, config: LivenessConfig, now: float) -> None:
        self._config = config
        self._heard_s = now
        self._watched_from_s = now
        """Start of the watched silence, counted back from the last look."""
        self._looked_s = now

    def heard(self, now: float) -> None:
        self._heard_s = max(self._heard_s, now)
        self._watched_from_s = max(self._watched_from_s, now)

    def state(self, now: float) -> PeerState:
        """How the peer stands at `now`. Call it regularly, at least `LOOKS` times per `suspect_s`."""
        gap_s = now - self._looked_s
        if gap_s > self._config.suspect_s:
            self._watched_from_s = max(self._watched_from_s, now)
        elif (late_s := gap_s - self._config.suspect_s / LOOKS) > 0:
            self._watched_from_s = max(self._watched_from_s, min(now, self._watched_from_s + late_s))
        self._looked_s = max(self._looked_s, now)
        if self._dead_in(now) <= 0:
            return PeerState.DEAD
        return PeerState.SUSPECT if now - self._watched_from_s >= self._config.suspect_s else PeerState.LIVE

    def due_in(self, now: float) -> float:
        """Seconds until the state of a peer that stays silent may change: time to look again."""
        seconds_left = (self._config.suspect_s - (now - self._watched_from_s), self._dead_in(now))
        return min((left for left in seconds_left if left > 0), default=0.0)

    def _dead_in(self, now: float) -> float:
        """Seconds of watched silence until the peer is dead; zero or less: it is dead."""
        dead_s, watched_s = self._config.dead_s, now - self._watched_from_s
        if self._config.watched_s is None:
            return dead_s - watched_s
        return max(dead_s - (now - self._heard_s), self._config.watched_s - watched_s)
