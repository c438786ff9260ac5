"""A worker's announcements of what its prefix cache holds: which places are announced, and the messages about them.

The engine's journal says what changed (`baton_engine.memory.place_journal`). Two bounds apply here. At most
`MOST_PLACES` are announced: beyond, the longest contexts, because they save most tokens. And changes are announced at
`BYTES_PER_S`: beyond, those of the longest contexts first, and the rest later, unless they have been undone by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from baton_engine.memory.place_journal import PlaceChanges
from baton_wire.messages.gateway_link import MAX_CHANGED_PLACES, CachedPlaces
from baton_wire.messages.values import PLACE_BYTES
from baton_wire.rules.prefix_digests import ANNOUNCED_PER_S, MOST_PLACES

BYTES_PER_S: Final = float(ANNOUNCED_PER_S * PLACE_BYTES)
BURST_S: Final = 4.0
"""A worker that was quiet for this long announces what it may in that time at once."""
ROOM: Final = 0.875
"""The share of `MOST_PLACES` that is kept when more are held, so that the next changes find room without a search."""


class PlaceQueue:
    """Changes on their way from the engine thread, which adds them, to the io thread, which takes them."""

    def __init__(self) -> None:
        self._changes: deque[PlaceChanges] = deque()  # its ends need no lock

    def add(self, changes: PlaceChanges) -> None:
        if changes:
            self._changes.append(changes)

    def take(self) -> Iterator[PlaceChanges]:
        while True:
            try:
                yield self._changes.popleft()
            except IndexError:
                return


class PlacesReport:
    """The places that were announced to gateways, and those to announce next. Pure; time is passed in."""

    def __init__(self, most_places: int = MOST_PLACES, bytes_per_s: float = BYTES_PER_S) -> None:
        self._most = most_places
        self._bytes_per_s = bytes_per_s
        self._held: dict[bytes, int] = {}
        self._announced: set[bytes] = set()
        self._changed: dict[bytes, int] = {}
        """Names whose announcement may differ from what is held, with the lengths of their contexts."""
        self._shortest = 0
        """Shorter contexts are not announced, because there are too many."""
        self._long = 0
        """Held places that are not shorter."""
        self._generation = 0
        self._allowed = bytes_per_s * BURST_S
        self._allowed_s: float | None = None

    @property
    def left_out(self) -> int:
        """Places that are held and not announced."""
        return max(0, len(self._held) - len(self._announced))

    def record(self, changes: PlaceChanges) -> None:
        """Take changes of the cache."""
        for digest in changes.dropped:
            name = digest[:PLACE_BYTES]
            if (blocks := self._held.pop(name, None)) is not None:
                self._changed[name] = blocks
                self._long -= blocks >= self._shortest
        for digest, blocks in changes.added:
            name = digest[:PLACE_BYTES]
            self._long += name not in self._held and blocks >= self._shortest
            self._held[name] = self._changed[name] = blocks
        self._keep_bound()

    def announce(self, now: float) -> list[CachedPlaces]:
        """Messages to all gateways about what changed since the last call, as far as the rate allows."""
        self._earn(now)
        due = [(blocks, name) for name, blocks in self._changed.items() if self._is_due(name)]
        most = int(self._allowed) // PLACE_BYTES
        rest = {}
        if len(due) > most:
            due.sort(reverse=True)
            rest = {name: blocks for blocks, name in due[most:]}
            del due[most:]
        self._changed = rest
        if not due:
            return []
        self._allowed -= PLACE_BYTES * len(due)
        self._generation += 1
        added = [name for _, name in due if name not in self._announced]
        dropped = [name for _, name in due if name in self._announced]
        self._announced.update(added)
        self._announced.difference_update(dropped)
        return list(self._messages(added, dropped, is_whole=False))

    def announce_all(self) -> list[CachedPlaces]:
        """Messages to one gateway about all that the others know."""
        return list(self._messages(list(self._announced), [], is_whole=True))

    def _messages(self, added: list[bytes], dropped: list[bytes], *, is_whole: bool) -> Iterator[CachedPlaces]:
        for start in range(0, max(len(added), len(dropped), 1), MAX_CHANGED_PLACES):
            end = start + MAX_CHANGED_PLACES
            names = b"".join(added[start:end]), b"".join(dropped[start:end])
            yield CachedPlaces(self._generation, *names, is_first=is_whole and start == 0, left_out=self.left_out)

    def _is_due(self, name: bytes) -> bool:
        return (self._held.get(name, -1) >= self._shortest) is not (name in self._announced)

    def _earn(self, now: float) -> None:
        passed_s = 0.0 if self._allowed_s is None else max(0.0, now - self._allowed_s)
        self._allowed_s = now
        self._allowed = min(self._bytes_per_s * BURST_S, self._allowed + self._bytes_per_s * passed_s)

    def _keep_bound(self) -> None:
        """Move the length from which contexts are announced, when too many are held or there is much room again."""
        if self._long > self._most:
            longest = sorted(self._held.values(), reverse=True)
            self._shortest = longest[int(ROOM * self._most)] + 1
        elif self._shortest and len(self._held) <= ROOM * self._most:
            self._shortest = 0
        else:
            return
        self._long = sum(blocks >= self._shortest for blocks in self._held.values())
        self._changed.update(self._held)
