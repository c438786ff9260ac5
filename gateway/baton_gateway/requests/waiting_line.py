"""The requests of one tenant that wait for admission: classes go in order, and sessions of a class take turns. Pure.

So a session with many requests delays the next one of another session by one request. Requests that name no session are
one session together. A session is known while a request of it waits: memory follows the requests, not the ids.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import msgspec

from baton_wire.tenant_table import PriorityClass

_RANKS: Final = {PriorityClass.INTERACTIVE: 0, PriorityClass.STANDARD: 1, PriorityClass.BATCH: 2}


class QueuePlace(msgspec.Struct, frozen=True):
    """The class and the session of a request, which decide its place among the requests of its tenant."""

    priority: PriorityClass = PriorityClass.STANDARD
    session: int | None = None
    """A number of the session; None: the client names none."""

    @property
    def rank(self) -> int:
        """Smaller ones go first."""
        return _RANKS[self.priority]

    @property
    def is_batch(self) -> bool:
        return self.priority is PriorityClass.BATCH


STANDARD_PLACE = QueuePlace()


class WaitingRequest(msgspec.Struct, frozen=True):
    """A request that waits for admission."""

    gives_up_s: float
    sequences: int
    at_once: int
    """Sequences of its first run."""
    effort: int
    place: QueuePlace = STANDARD_PLACE


class _Session:
    """The waiting requests of one session and class."""

    __slots__ = ("requests", "sequences")

    def __init__(self) -> None:
        self.requests: OrderedDict[int, WaitingRequest] = OrderedDict()
        self.sequences = 0


class WaitingLine:
    """The waiting requests of one tenant, by ticket."""

    def __init__(self) -> None:
        self._requests: OrderedDict[int, WaitingRequest] = OrderedDict()
        """In order of arrival."""
        self._sessions: tuple[OrderedDict[int | None, _Session], ...] = tuple(OrderedDict() for _ in _RANKS)
        """By rank: the sessions in the order of their turns."""
        self._sequences = [0] * len(_RANKS)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[tuple[int, WaitingRequest]]:
        """Yield the requests in order of arrival."""
        return iter(self._requests.items())

    @property
    def sequences(self) -> int:
        """Waiting sequences."""
        return sum(self._sequences)

    @property
    def batch_sequences(self) -> int:
        """Waiting sequences of the batch class."""
        return self._sequences[-1]

    def add(self, ticket: int, request: WaitingRequest) -> None:
        """A request arrived."""
        rank = request.place.rank
        session = self._sessions[rank].setdefault(request.place.session, _Session())
        session.requests[ticket] = self._requests[ticket] = request
        session.sequences += request.sequences
        self._sequences[rank] += request.sequences

    def first(self) -> tuple[int, WaitingRequest]:
        """The request whose turn it is; there must be one."""
        sessions = next(sessions for sessions in self._sessions if sessions)
        return next(iter(next(iter(sessions.values())).requests.items()))

    def start_first(self) -> tuple[int, WaitingRequest]:
        """Remove the request whose turn it is. The next turn of its class is another session's."""
        ticket, request = self.first()
        self._sessions[request.place.rank].move_to_end(request.place.session)
        self.remove(ticket)
        return ticket, request

    def remove(self, ticket: int) -> WaitingRequest | None:
        """Remove a request; None: it does not wait here."""
        request = self._requests.pop(ticket, None)
        if request is None:
            return None
        rank, name = request.place.rank, request.place.session
        session = self._sessions[rank][name]
        del session.requests[ticket]
        session.sequences -= request.sequences
        if not session.requests:
            del self._sessions[rank][name]
        self._sequences[rank] -= request.sequences
        return request

    def has_before(self, place: QueuePlace) -> bool:
        """Return whether a newcomer with this place would wait for another request of the line."""
        return any(self._sessions[: place.rank + 1])

    def ahead(self, place: QueuePlace) -> int:
        """The most sequences that go before a newcomer with this place. Sessions take turns, so each of its class has
        about as many as its own."""
        rank, sessions = place.rank, self._sessions[place.rank]
        own = sessions.get(place.session)
        before = sum(self._sequences[:rank])
        if own is not None and len(sessions) == 1:
            return before + own.sequences
        turns = 1 if own is None else own.sequences + 1
        return before + min(self._sequences[rank], turns * len(sessions))

    def oldest(self) -> WaitingRequest:
        """The request that arrived first; there must be one."""
        return next(iter(self._requests.values()))

    def evictable(self, newcomer: QueuePlace | None = None, *, is_batch: bool = False) -> Iterator[tuple[int, int]]:
        """Yield (ticket, sequences) of the requests that may be evicted, first the newest of the longest session of the
        last class. `newcomer`: only for this one, of the same tenant: lower classes, and sessions of its class that
        have more than its own. `is_batch`: only the batch class.
        """
        for rank in reversed(range(len(_RANKS))):
            if (is_batch and rank != len(_RANKS) - 1) or (newcomer is not None and rank < newcomer.rank):
                return
            least = 0
            if newcomer is not None and rank == newcomer.rank:
                own = self._sessions[rank].get(newcomer.session)
                least = 1 if own is None else len(own.requests) + 1
            yield from self._newest(rank, least)

    def _newest(self, rank: int, least: int) -> Iterator[tuple[int, int]]:
        """Yield the newest requests of the longest sessions, which have more than `least`."""
        sessions = self._sessions[rank].values()
        longest = [
            (-len(session.requests), -place, reversed(session.requests.items()))
            for place, session in enumerate(sessions)
        ]
        heapq.heapify(longest)
        while longest and -longest[0][0] > least:
            size, place, newest = longest[0]
            ticket, request = next(newest)
            yield ticket, request.sequences
            heapq.heapreplace(longest, (size + 1, place, newest))
