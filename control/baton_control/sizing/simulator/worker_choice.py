"""How a simulated request finds its workers.

By load, as sizing needs it: a prompt goes to the prefill worker with the least work and to the decode worker with the
most room, and finds the share of its cached tokens that affinity and chance find. Loads of sessions bring choices that
know what each worker has cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from baton_control.sizing.simulator.decode_worker import DecodeWorker, least_room
from baton_control.sizing.simulator.prefill_worker import PrefillWorker
from baton_wire.messages.measures import ContextCounts


class ChoiceInputs(Protocol):
    """The part of the simulator that a choice reads."""

    now: float
    cached: list[int]
    """Tokens of each prompt that an ideal cache would find."""
    routable_prefill: list[PrefillWorker]
    routable_decode: list[DecodeWorker]

    def prompt_now(self, request: int) -> int: ...


class WorkerChoice(Protocol):
    """Chooses the workers of simulated requests."""

    @property
    def waits_for_room(self) -> bool:
        """True: a prompt waits at the gateway until it fits into the chosen worker's next step. False: until any worker
        has room."""
        ...

    def expected_cached(self, request: int, seen: ChoiceInputs) -> int:
        """Tokens of the prompt that a worker will probably find cached, when the request arrives."""
        ...

    def choose(
        self, request: int, idlest: PrefillWorker, seen: ChoiceInputs
    ) -> tuple[PrefillWorker, DecodeWorker | None, int]:
        """(prefill worker, decode worker, cached tokens at the former). None: `choose_decode` is asked. `idlest`: the
        prefill worker with the least work."""
        ...

    def choose_decode(self, request: int, seen: ChoiceInputs) -> DecodeWorker: ...

    def reported_cached(self, request: int, seen: ChoiceInputs) -> int:
        """Tokens of a prompt that has arrived that its worker need not compute, as gateways report them."""
        ...

    def take_context_counts(self, now: float) -> ContextCounts | None:
        """How soon contexts were used again since the last call; None: the choice knows no contexts."""
        ...

    def sent(self, request: int, prefill: PrefillWorker, decode: DecodeWorker | None) -> None:
        """The request goes to these workers."""
        ...

    def held_tokens(self, request: int, worker: DecodeWorker) -> int:
        """Tokens of the prompt whose KV need not be sent to this decode worker."""
        ...


@dataclass(frozen=True, slots=True)
class ByLoad:
    """By load alone. `prefix_affinity`: the share of the ideally cached tokens that routing finds; chance finds more on
    one of n workers."""

    prefix_affinity: float = 0.9
    waits_for_room: bool = True

    def expected_cached(self, request: int, seen: ChoiceInputs) -> int:
        ideal = seen.cached[request]
        if not ideal:
            return 0
        hit_share = found_share(self.prefix_affinity, len(seen.routable_prefill))
        return min(int(ideal * hit_share), seen.prompt_now(request) - 1)

    def choose(
        self, request: int, idlest: PrefillWorker, seen: ChoiceInputs
    ) -> tuple[PrefillWorker, DecodeWorker | None, int]:
        return idlest, None, self.expected_cached(request, seen)

    def choose_decode(self, request: int, seen: ChoiceInputs) -> DecodeWorker:
        return most_room(seen.routable_decode)

    def reported_cached(self, request: int, seen: ChoiceInputs) -> int:
        return self.expected_cached(request, seen)

    def take_context_counts(self, now: float) -> ContextCounts | None:
        return None

    def sent(self, request: int, prefill: PrefillWorker, decode: DecodeWorker | None) -> None:
        pass

    def held_tokens(self, request: int, worker: DecodeWorker) -> int:
        return 0


def found_share(prefix_affinity: float, workers: int) -> float:
    """The share of the ideally cached tokens that is found on one of `workers` workers."""
    return prefix_affinity + (1.0 - prefix_affinity) / max(1, workers)


def most_room(workers: Sequence[DecodeWorker]) -> DecodeWorker:
    return min(workers, key=least_room)
