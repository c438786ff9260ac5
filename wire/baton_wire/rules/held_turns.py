"""Whose turn it is, of several gateways that hold prompts for the same prefill workers.

Each sees only its own line. When a worker reports room, all of them would send into it at once, and one that has only
late prompts would send before another whose prompts are in time. So each tells one worker, the same for all, how urgent
the most urgent prompt is that it holds. That worker tells back whose are the most urgent. These take turns of a few
milliseconds, in which each hears what the one before it sent. Pure; time is passed in.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

TURN_S: Final = 0.004
"""Longer than a message to a worker and its report to the other gateways take. Much less than the work that prompts may
find before them at a worker, so that it never waits for a turn."""

LEAST_WAIT_S: Final = 1e-4
"""So that time passes until the next look."""

L = TypeVar("L", bound=Hashable)


class HeldRank(enum.IntEnum):
    """How urgent a held prompt is; lower ones go first."""

    IN_TIME = 0
    SET_ASIDE = 1
    LATE = 2


class TurnInRound(NamedTuple):
    """What one gateway is told."""

    place: int | None
    """In the round of those whose prompts are the most urgent; None: it is none of them."""
    of: int
    """How many take turns: at least one."""

    def wait_s(self, since_s: float) -> float | None:
        """Until its turn, 0: now, when it was told so long ago; None: it has none until it is told otherwise."""
        if self.place is None:
            return None
        past = int(since_s / TURN_S)
        behind = (self.place - past) % self.of
        return 0.0 if behind == 0 else max(LEAST_WAIT_S, (past + behind) * TURN_S - since_s)


class HeldTurns(Generic[L]):
    """A worker's knowledge of who holds what; `L` is a link to a gateway."""

    def __init__(self) -> None:
        self._ranks: dict[L, HeldRank] = {}
        self._rounds = 0

    def told(self, link: L, rank: HeldRank | None) -> bool:
        """Whether that changes anything. None: it holds nothing."""
        before = self._ranks.pop(link, None)
        if rank is not None:
            self._ranks[link] = rank
        return before != rank

    def turns(self, links: list[L]) -> dict[L, TurnInRound]:
        """For the next report, of these links; empty while nobody holds anything. Each report begins another round, and
        another one is first in it."""
        if not self._ranks:
            return {}
        best = min(self._ranks.values())
        first = [link for link in links if self._ranks.get(link) is best]
        self._rounds += 1
        places = {link: (place + self._rounds) % len(first) for place, link in enumerate(first)}
        return {link: TurnInRound(places.get(link), max(1, len(first))) for link in links}
