"""The view of simulated workers that a routing policy gets, and the policies of other systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from baton_simulate.sessions.session_load import Segment


@dataclass(frozen=True, slots=True)
class RoutedTurn:
    """A turn that needs workers."""

    place: int
    session: int
    prompt: tuple[Segment, ...]
    tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """A worker as it is at the moment of routing."""

    number: int
    """The same for as long as the worker runs."""
    cached_tokens: int
    """Tokens of the turn's prompt that its cache has."""
    queued_s: float
    """Seconds until it has computed the prompts that were sent to it; 0 for a decode worker."""
    queued_tokens: int
    """Prompt tokens that it still has to compute, without cached ones, or to receive."""
    queued_prompt_tokens: int
    """The same with the cached ones."""
    sequences: int
    """Sequences that run, wait or are on their way."""
    held_tokens: int
    """Tokens of KV that these need."""
    token_s: float
    """Seconds that it takes for one prompt token."""
    empty_tokens: int
    """Tokens of KV memory with nothing in it."""


class RoutingPolicy(Protocol):
    """Chooses a prefill and a decode worker for each turn. Knows nothing but what it is given."""

    def choose(
        self, turn: RoutedTurn, prefill: Sequence[SimulatedWorker], decode: Sequence[SimulatedWorker], now: float
    ) -> tuple[int, int]:
        """(index into `prefill`, index into `decode`)"""
        ...


def idlest(workers: Sequence[SimulatedWorker]) -> int:
    """The index of the worker with the least work: seconds of prompts, then KV."""
    return min(range(len(workers)), key=lambda place: (workers[place].queued_s, workers[place].held_tokens))


@dataclass(slots=True)
class RoundRobinRouting:
    """One after the other."""

    _turns: int = 0

    def choose(
        self, turn: RoutedTurn, prefill: Sequence[SimulatedWorker], decode: Sequence[SimulatedWorker], now: float
    ) -> tuple[int, int]:
        self._turns += 1
        return self._turns % len(prefill), self._turns % len(decode)


@dataclass(slots=True)
class LeastLoadRouting:
    """The worker with the least work, whatever it has cached."""

    def choose(
        self, turn: RoutedTurn, prefill: Sequence[SimulatedWorker], decode: Sequence[SimulatedWorker], now: float
    ) -> tuple[int, int]:
        return idlest(prefill), idlest(decode)


@dataclass(slots=True)
class PrefixOnlyRouting:
    """The worker with the longest cached beginning, whatever its work; among equals the one with the least."""

    def choose(
        self, turn: RoutedTurn, prefill: Sequence[SimulatedWorker], decode: Sequence[SimulatedWorker], now: float
    ) -> tuple[int, int]:
        return _longest(prefill), _longest(decode)


def _longest(workers: Sequence[SimulatedWorker]) -> int:
    longest = max(worker.cached_tokens for worker in workers)
    places = [place for place, worker in enumerate(workers) if worker.cached_tokens == longest]
    return places[idlest([workers[place] for place in places])]


@dataclass(slots=True)
class SessionStickyRouting:
    """Each session stays at the workers that had the least work when it began."""

    _prefill: dict[int, int] = field(default_factory=dict)
    _decode: dict[int, int] = field(default_factory=dict)

    def choose(
        self, turn: RoutedTurn, prefill: Sequence[SimulatedWorker], decode: Sequence[SimulatedWorker], now: float
    ) -> tuple[int, int]:
        return _stay(turn.session, prefill, self._prefill), _stay(turn.session, decode, self._decode)


def _stay(session: int, workers: Sequence[SimulatedWorker], homes: dict[int, int]) -> int:
    home = homes.get(session)
    place = next((place for place, worker in enumerate(workers) if worker.number == home), None)
    if place is None:
        place = idlest(workers)
        homes[session] = workers[place].number
    return place


BASELINES: Final[Mapping[str, Callable[[], RoutingPolicy]]] = {
    "round-robin": RoundRobinRouting,
    "least-load": LeastLoadRouting,
    "prefix-only": PrefixOnlyRouting,
    "session-sticky": SessionStickyRouting,
}
"""The policies of other systems by name."""
