"""Turns among several gateways that hold prompts for the same prefill workers.

Each gateway sees only its own line. When a worker reports room, all of them would send into it at once, and a gateway
with only late prompts would send before another whose prompts are in time. So each reports to one worker, the same for
all, how urgent its most urgent prompt is. That worker answers which gateways hold the most urgent prompts. These take
turns of a few milliseconds, the one whose prompt has to start soonest first. Within a turn a gateway sees what the one
before it sent, so prompts start in the order of one common line. Pure; time is passed in.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from math import inf
from typing import Final, Generic, NamedTuple, TypeVar

from baton_wire.liveness import REPORT_S

TURN_S: Final = 0.004
"""Longer than a message to a worker and its report to the other gateways take. Much less than the work that prompts may
find before them at a worker, so that no worker falls idle for a turn."""

SILENT_S: Final = REPORT_S
"""A worker that gives turns reports sooner, once a gateway has reported another prompt to it. A worker that does not
may stand still, and no gateway should wait for it longer than for its next slot."""

LEAST_WAIT_S: Final = 1e-4
"""So that time passes until the next look."""

L = TypeVar("L", bound=Hashable)


class HeldRank(enum.IntEnum):
    """How urgent a held prompt is; lower ones go first."""

    IN_TIME = 0
    SET_ASIDE = 1
    """Deferred: it goes after all prompts that are in time."""
    LATE = 2


class Urgency(NamedTuple):
    """Urgency of the most urgent prompt that a gateway holds."""

    rank: HeldRank
    start_by_s: float | None = None
    """When it has to start, by one clock for all; None: at once, as its client has waited before, or it is late already
    (`rank` says which)."""


class RoundPosition(NamedTuple):
    """The turn of one gateway, as it is sent to it."""

    place: int | None
    """Place in the round of the gateways with the most urgent prompts; None: it is not among them."""
    of: int
    """Gateways that take turns: at least one."""

    def wait_s(self, since_s: float, taken_s: float = 0.0, workers: int = 1) -> float | None:
        """Seconds until the gateway's turn, `since_s` after it got this position; None: it has no turn.

        `taken_s`: work that it sent since, spread over `workers`. A turn has room for one more prompt until that work
        is as long as the turn; positions are assigned anew soon, so no worker falls idle.

        >>> [RoundPosition(place=1, of=3).wait_s(since_s) for since_s in (0.0, 0.004, 0.008)]
        [0.004, 0.0, 0.008]
        >>> RoundPosition(place=None, of=3).wait_s(0.0) is None
        True
        """
        if self.place is None:
            return None
        if self.of > 1 and taken_s >= TURN_S * workers and since_s < SILENT_S:
            return SILENT_S - since_s
        past = int(since_s / TURN_S)
        turns_left = (self.place - past) % self.of
        return 0.0 if turns_left == 0 else max(LEAST_WAIT_S, (past + turns_left) * TURN_S - since_s)


class GatewayRounds(Generic[L]):
    """A worker's record of the prompts that gateways hold; `L` is a link to a gateway."""

    def __init__(self) -> None:
        self._held: dict[L, Urgency] = {}
        self._rounds = 0

    def __bool__(self) -> bool:
        """True while a gateway holds prompts."""
        return bool(self._held)

    def update(self, link: L, urgency: Urgency | None) -> bool:
        """Note what the gateway holds (None: nothing). True if that is a change."""
        before = self._held.pop(link, None)
        if urgency is not None:
            self._held[link] = urgency
        return before != urgency

    def turns(self, links: list[L]) -> dict[L, RoundPosition]:
        """Positions of these links for the next report; empty while no gateway holds prompts. Each report begins
        another round, and another one of equally urgent gateways is first in it."""
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
