"""Which legs a gateway has open on workers: an attempt that is over must have been ended at every worker it used."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_testing.simulation.process import require
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve, Retarget
from baton_wire.messages.values import TokenEntry

Attempt = tuple[bytes, int]


@dataclass(slots=True)
class _Legs:
    decode: bytes
    open_choices: set[int]
    workers: set[bytes] = field(default_factory=set)


class OpenLegs:
    """Kept from the messages of one gateway alone."""

    def __init__(self) -> None:
        self._legs: dict[Attempt, _Legs] = {}
        self._moved: dict[Attempt, bytes] = {}
        """Prefill workers that keep the KV of an attempt whose reservation is about to be sent."""

    def sent(self, worker: bytes, message: Prefill | Reserve | Retarget | Cancel) -> None:
        attempt = message.request, message.attempt
        if isinstance(message, Reserve):
            older = [known for known in self._legs if known[0] == message.request and known[1] < message.attempt]
            require(not older, "I3", f"legs of {older} were left alone by the next attempt")
            moved = {self._moved.pop(attempt)} if attempt in self._moved else set()
            self._legs[attempt] = _Legs(worker, set(message.choices), {worker} | moved)
        elif isinstance(message, Retarget):
            self._close(attempt, worker)
            self._moved[message.request, message.next_attempt] = worker
        elif isinstance(message, Prefill):
            self._legs[attempt].workers.add(worker)
        elif message.choice is None:
            self._close(attempt, worker)
        else:
            self._choice_over(attempt, message.choice)

    def has(self, worker: bytes, entry: TokenEntry) -> bool:
        """Return whether the worker has a leg of the attempt."""
        legs = self._legs.get((entry.request, entry.attempt))
        return legs is not None and worker in (legs.decode, *legs.workers)

    def arrived(self, worker: bytes, entry: TokenEntry) -> None:
        attempt = entry.request, entry.attempt
        legs = self._legs.get(attempt)
        if legs is not None and worker == legs.decode:
            legs.workers &= {worker}
        if entry.finish is not None:
            self._choice_over(attempt, entry.choice)

    def failed(self, worker: bytes, request: bytes, attempt: int) -> None:
        self._close((request, attempt), worker)

    def lost(self, worker: bytes) -> None:
        for attempt in list(self._legs):
            self._close(attempt, worker)

    def forget(self, runs: tuple[bytes, ...]) -> None:
        """Forget the legs of a request that one of its own workers lied about: open ones are that worker's fault."""
        for attempt in [attempt for attempt in self._legs if attempt[0] in runs]:
            del self._legs[attempt]

    def require_none(self, runs: tuple[bytes, ...]) -> None:
        left = [attempt for attempt in self._legs if attempt[0] in runs]
        require(not left, "I3", f"the request is over, but legs of {left} are open")

    def _choice_over(self, attempt: Attempt, choice: int) -> None:
        legs = self._legs.get(attempt)
        if legs is not None:
            legs.open_choices.discard(choice)
            if not legs.open_choices:
                del self._legs[attempt]

    def _close(self, attempt: Attempt, worker: bytes) -> None:
        legs = self._legs.get(attempt)
        if legs is not None:
            legs.workers.discard(worker)
            if not legs.workers:
                del self._legs[attempt]
