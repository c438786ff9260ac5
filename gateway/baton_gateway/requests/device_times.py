"""The time that workers' devices spent on one request, as far as they reported it: for the ledger. Pure.

A worker reports the total of a leg, again and again. So a report that is lost or comes late loses nothing that the next
one does not bring.
"""

from __future__ import annotations

from collections.abc import Iterator

from baton_wire.messages.values import Role


class DeviceTimes:
    """The seconds of the legs of one request."""

    __slots__ = ("_legs",)

    def __init__(self) -> None:
        self._legs: dict[tuple[bytes, int, Role], float] = {}

    def note(self, run: bytes, attempt: int, role: Role, seconds: float) -> None:
        """A worker of this role reported the seconds of its leg so far."""
        leg = run, attempt, role
        self._legs[leg] = max(seconds, self._legs.get(leg, 0.0))

    def by_role(self) -> dict[Role, float]:
        """The sums of all legs. A role of which no worker reported any time is absent: it had no leg, or its report is
        missing."""
        sums: dict[Role, float] = {}
        for (_, _, role), seconds in self._legs.items():
            sums[role] = sums.get(role, 0.0) + seconds
        return sums


def pool_seconds(seconds: dict[Role, float]) -> Iterator[tuple[str, float]]:
    """The seconds by pool, as the ledger has them: to a microsecond."""
    for role in sorted(seconds):
        yield role.value, round(seconds[role], 6)
