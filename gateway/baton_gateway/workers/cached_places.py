"""The places that the linked workers' prefix caches hold, as announced: every gateway process hears the same.

A worker that announces the impossible is not believed for a while: its places are forgotten, and prompts are placed as
if nothing were cached there. Its link stays. Plain bookkeeping; time is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from baton_gateway.workers.place_index import PlaceIndex
from baton_wire.messages.gateway_link import CachedPlaces
from baton_wire.messages.values import PLACE_BYTES
from baton_wire.rules.prefix_digests import ANNOUNCED_PER_S, MOST_PLACES

DISBELIEVED_S: Final = 60.0
"""After this long a worker that announced the impossible is asked for all its places again."""
ASK_S: Final = 5.0
"""Least time between two questions to a worker that missed nothing itself, but whose messages were missed."""
CHANGES_PER_S: Final = 3.0 * ANNOUNCED_PER_S
"""Changed places that are read of one worker: more than a sound one announces."""
CHANGES_AT_ONCE: Final = 4.0 * MOST_PLACES


@dataclass(slots=True)
class _Announcer:
    """One worker's announcements."""

    holder: int
    is_known: bool = False
    """True when the worker has announced all its places, and every change since was heard."""
    generation: int = 0
    places: int = 0
    disbelieved_until_s: float | None = None
    asked_s: float | None = None
    allowed: float = CHANGES_AT_ONCE
    allowed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Reading:
    """The outcome of a message. `fault`: why the worker is not believed any more; None: it is, or was not before."""

    fault: str | None = None
    asks: bool = False
    """Ask the worker for all its places."""


@dataclass(slots=True)
class CachedPlacesBook:
    """The announced places of all linked workers, by epoch."""

    _index: PlaceIndex = field(default_factory=PlaceIndex)
    _announcers: dict[bytes, _Announcer] = field(default_factory=dict)
    _epochs: dict[int, bytes] = field(default_factory=dict)

    def begin(self, epoch: bytes) -> None:
        """A worker is linked: what it holds is unknown until it says so."""
        holder = next(number for number in range(len(self._epochs) + 1) if number not in self._epochs)
        self._epochs[holder] = epoch
        self._announcers[epoch] = _Announcer(holder)

    def end(self, epoch: bytes) -> None:
        """The worker's link is lost, and what it held is forgotten."""
        announcer = self._announcers.pop(epoch, None)
        if announcer is not None:
            self._index.forget(announcer.holder)
            del self._epochs[announcer.holder]

    def take(self, epoch: bytes, message: CachedPlaces, now: float) -> Reading:
        """Take a worker's message."""
        announcer = self._announcers.get(epoch)
        if announcer is None:
            return Reading()
        if announcer.disbelieved_until_s is not None:
            return self._hear_again(announcer, message, now)
        if (fault := _find_fault(announcer, message, now)) is not None:
            return self._disbelieve(announcer, fault, now)
        if message.is_first:
            self._forget(announcer)
            announcer.is_known, announcer.generation = True, message.generation
        elif not announcer.is_known:
            return self._ask(announcer, now)
        elif message.generation > announcer.generation + 1:
            self._forget(announcer)
            return self._ask(announcer, now)
        announcer.generation = message.generation
        announcer.places += self._index.add(announcer.holder, message.added)
        announcer.places -= self._index.drop(announcer.holder, message.dropped)
        if announcer.places > MOST_PLACES:
            return self._disbelieve(announcer, f"it announced more than {MOST_PLACES} places", now)
        return Reading()

    def places(self, epoch: bytes) -> int | None:
        """Number of places that the worker announced; None: unknown."""
        announcer = self._announcers.get(epoch)
        return announcer.places if announcer is not None and announcer.is_known else None

    def longest(self, names: bytes) -> dict[bytes, int]:
        """The longest context, in blocks, that each worker holds of a prompt with these places. Workers that hold none
        of it, or that nothing is known of, are not listed."""
        return {self._epochs[holder]: blocks for holder, blocks in self._index.longest(names).items()}

    def _hear_again(self, announcer: _Announcer, message: CachedPlaces, now: float) -> Reading:
        """Ignore a worker that is not believed, and ask it to begin anew once it may."""
        assert announcer.disbelieved_until_s is not None
        if now < announcer.disbelieved_until_s:
            return Reading()
        announcer.disbelieved_until_s = announcer.asked_s = None
        announcer.generation, announcer.allowed, announcer.allowed_s = 0, CHANGES_AT_ONCE, now
        return self._ask(announcer, now)

    def _ask(self, announcer: _Announcer, now: float) -> Reading:
        if announcer.asked_s is not None and now - announcer.asked_s < ASK_S:
            return Reading()
        announcer.asked_s = now
        return Reading(asks=True)

    def _disbelieve(self, announcer: _Announcer, fault: str, now: float) -> Reading:
        self._forget(announcer)
        announcer.disbelieved_until_s = now + DISBELIEVED_S
        return Reading(fault)

    def _forget(self, announcer: _Announcer) -> None:
        self._index.forget(announcer.holder)
        announcer.is_known, announcer.places = False, 0


def _find_fault(announcer: _Announcer, message: CachedPlaces, now: float) -> str | None:
    """Why no sound worker sends this message; None: one may."""
    size = len(message.added) + len(message.dropped)
    if len(message.added) % PLACE_BYTES or len(message.dropped) % PLACE_BYTES:
        return f"names of {len(message.added)} and {len(message.dropped)} bytes are not multiples of {PLACE_BYTES}"
    if message.generation < announcer.generation:
        return f"generation {message.generation} came after {announcer.generation}"
    passed_s = max(0.0, now - announcer.allowed_s)
    announcer.allowed_s = now
    announcer.allowed = min(CHANGES_AT_ONCE, announcer.allowed + CHANGES_PER_S * passed_s) - size // PLACE_BYTES
    if announcer.allowed < 0:
        return f"more than {CHANGES_PER_S:g} places changed in a second"
    return None
