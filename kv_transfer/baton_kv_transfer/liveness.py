"""When a silent peer is suspected and when it is given up: pure, with the time passed in."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class LinkHealth(enum.StrEnum):
    LIVE = "live"
    SUSPECT = "suspect"
    """No new work to it."""
    DEAD = "dead"
    """Give it up; what it had is retried elsewhere."""


@dataclass(slots=True)
class Liveness:
    """Silence of one peer. Any authenticated frame counts as a sign of life.

    A gap in our own watching (`looked` long ago: this process was stopped or starved) is not held against the peer: the
    silence is then counted from the moment we look again.
    """

    heard_s: float
    suspect_s: float = 1.5
    dead_s: float = 3.0
    looked_s: float | None = None

    def heard(self, now: float) -> None:
        self.heard_s = max(self.heard_s, now)

    def look(self, now: float) -> LinkHealth:
        """Health at `now`. Call it regularly, several times per `suspect_s`."""
        if self.looked_s is not None and now - self.looked_s > self.suspect_s:
            self.heard_s = max(self.heard_s, now)
        self.looked_s = now
        silence = now - self.heard_s
        if silence >= self.dead_s:
            return LinkHealth.DEAD
        return LinkHealth.SUSPECT if silence >= self.suspect_s else LinkHealth.LIVE
