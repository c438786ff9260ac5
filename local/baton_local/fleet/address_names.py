"""Names of the processes at the addresses of one run, also at addresses that they have left."""

from __future__ import annotations

from collections.abc import Iterable

from baton_local.fleet.supervision import ProcessSlot

MAX_NAMES = 1_024
"""Addresses that are remembered; the oldest ones go."""


class AddressNames:
    """The names so far."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def note(self, slots: Iterable[ProcessSlot]) -> dict[str, str]:
        """Note the present addresses; returns a copy of all names by address."""
        for slot in slots:
            if slot.announcement is not None:
                address = f"{slot.announcement.host}:{slot.announcement.port}"
                self._names.pop(address, None)
                self._names[address] = slot.name
        while len(self._names) > MAX_NAMES:
            del self._names[next(iter(self._names))]
        return dict(self._names)
