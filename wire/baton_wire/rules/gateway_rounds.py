"""Whose turn it is, of several gateways that hold prompts for the same prefill workers.

Each sees only its own line. When a worker reports room, all of them would send into it at once, and one that has only
late prompts would send before another whose prompts are in time. So each tells one worker, the same for all, how urgent
the most urgent prompt is that it holds. That worker tells back whose are the most urgent. These take turns of a few
milliseconds, in which each hears what the one before it sent, whose prompt has to start soonest first: the order that
one line of all prompts would have. Pure; time is passed in.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from baton_wire.liveness import REPORT_S

TURN_S: Final = 0.004
"""Longer than a message to a worker and its report to the other gateways take. Much less than the work that prompts may
find before them at a worker, so that it never waits for a turn."""

SILENT_S: Final = REPORT_S
"""A worker that gives turns reports sooner, once somebody has told it of another prompt. One that does not may stand
still, and nobody should wait for it longer than for their next slot."""

LEAST_WAIT_S: Final = 1e-4
"""So that time passes until the next look."""

L = TypeVar("L", bound=Hashable)


class HeldRank(enum.IntEnum):
    """How urgent a held prompt is; lower ones go first."""

    IN_TIME = 0
    SET_ASIDE = 1
    LATE = 2


class Urgency(NamedTuple):
    """Of the most urgent prompt that a gateway holds."""

    rank: HeldRank
    start_by_s: float | None = None
    """When it has to start, by one clock for all; None: at once, as its client has waited before, or it is late already
    (`rank` says which)."""


class RoundPosition(NamedTuple):
    """What one gateway is told."""

    place: int | None
    """In the round of those whose prompts are the most urgent; None: it is none of them."""
    of: int
    """How many take turns: at least one."""

    def wait_s(self, since_s: float, taken_s: float = 0.0, workers: int = 1) -> float | None:
        """Until its turn, 0: now, when it was told so long ago; None: it has none until it is told otherwise.

        `taken_s`: work that it sent since, for one of these many workers. A turn has room for one more prompt until
        that is as long as the turn: who has the next most urgent one is asked again soon, and nobody falls idle.
        """
        if self.place is None:
            return None
        if self.of > 1 and taken_s >= TURN_S * workers and since_s < SILENT_S:
            return SILENT_S - since_s
        past = int(since_s / TURN_S)
        behind = (self.place - past) % self.of
        return 0.0 if behind == 0 else max(LEAST_WAIT_S, (past + behind) * TURN_S - since_s)


class GatewayRounds(Generic[L]):
    """A worker's knowledge of who holds what; `L` is a link to a gateway."""

    def __init__(self) -> None:
        self._held: dict[L, Urgency] = {}
        self._rounds = 0

    def told(self, link: L, urgency: Urgency | None) -> bool:
        """Whether that changes anything. None: it holds nothing."""
        before = self._held.pop(link, None)
        if urgency is not None:
            self._held[link] = urgency
        return before != urgency

    def turns(self, links: list[L]) -> dict[L, RoundPosition]:
        """For the next report, of these links; empty while nobody holds anything. Each report begins another round. Of
        equally urgent ones another is first in it."""
        held = {link: self._held[link] for link in links if link in self._held}
        if not held:
            return {}
        best = min(urgency.rank for urgency in held.values())
        first = [link for link, urgency in held.items() if urgency.rank is best]
        self._rounds += 1
        turned = self._rounds % len(first)
        order = sorted(first[turned:] + first[:turned], key=lambda link: _start_by_s(held[link]))
        places = {link: place for place, link in enumerate(order)}
        return {link: RoundPosition(places.get(link), len(first)) for link in links}


def _start_by_s(urgency: Urgency) -> float:
    return -inf if urgency.start_by_s is None else urgency.start_by_s
