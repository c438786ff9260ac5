"""The simulator's choice of workers for turns of sessions: caches of its workers, and a policy that sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_control.sizing.simulator.decode_worker import DecodeWorker
from baton_control.sizing.simulator.prefill_worker import PrefillWorker
from baton_control.sizing.simulator.worker_choice import ChoiceInputs, most_room
from baton_simulate.sessions.prefix_cache import BeginningNumbers, Beginnings, PrefixCache
from baton_simulate.sessions.routing_policy import RoutedTurn, RoutingPolicy, SimulatedWorker
from baton_wire.messages.measures import ContextCounts
from baton_wire.rules.context_reuse import ContextReuse


@dataclass(slots=True)
class _Known:
    """A worker with its number and its cache."""

    worker: PrefillWorker | DecodeWorker
    number: int
    cache: PrefixCache = field(default_factory=PrefixCache)


@dataclass(slots=True)
class RoutedRequest:
    """A request of the simulator: the turn that it is, and what became of it."""

    turn: RoutedTurn
    beginnings: Beginnings
    ideal_tokens: int
    """Tokens that an infinite cache has of its prompt."""
    found_tokens: int | None = None
    """Tokens that its first prefill worker had cached; None: it was not sent yet."""
    prefill: int | None = None
    """Number of that worker."""
    best_tokens: int = 0
    """Tokens that the prefill worker with the longest beginning had cached then."""
    held: tuple[int, int] = (0, 0)
    """(number, tokens that it had cached) of the chosen decode worker."""


class SessionChoice:
    """A `WorkerChoice` with caches. A prompt counts as cached from when it is sent: prompts queue in order."""

    waits_for_room = False

    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy
        self._numbers = BeginningNumbers()
        self._known: dict[int, _Known] = {}
        """Workers by identity."""
        self._begun = 0
        self.requests: list[RoutedRequest] = []
        self.reuse = ContextReuse()

    def register(self, turn: RoutedTurn, ideal_tokens: int) -> None:
        """The next request that arrives is this turn."""
        self.requests.append(RoutedRequest(turn, self._numbers.beginnings(turn.prompt), ideal_tokens))

    # As a `WorkerChoice` ----------------------------------------------------------------------------------------------

    def expected_cached(self, request: int, seen: ChoiceInputs) -> int:
        beginnings = self.requests[request].beginnings
        return max((self._of(w).cache.cached_tokens(beginnings) for w in seen.routable_prefill), default=0)

    def choose(
        self, request: int, idlest: PrefillWorker, seen: ChoiceInputs
    ) -> tuple[PrefillWorker, DecodeWorker | None, int]:
        routed = self.requests[request]
        prefill = [self._view_prefill(worker, routed, seen.now) for worker in seen.routable_prefill]
        decode = [self._view_decode(worker, routed) for worker in seen.routable_decode]
        place, decode_place = self._policy.choose(routed.turn, prefill, decode, seen.now)
        cached = min(prefill[place].cached_tokens, seen.prompt_now(request) - 1)
        if routed.found_tokens is None:
            routed.found_tokens, routed.prefill = cached, prefill[place].number
            routed.best_tokens = max(worker.cached_tokens for worker in prefill)
            self._count_reuse(routed, seen.now)
        if not decode:
            return seen.routable_prefill[place], None, cached
        routed.held = decode[decode_place].number, decode[decode_place].cached_tokens
        return seen.routable_prefill[place], seen.routable_decode[decode_place], cached

    def choose_decode(self, request: int, seen: ChoiceInputs) -> DecodeWorker:
        return most_room(seen.routable_decode)

    def reported_cached(self, request: int, seen: ChoiceInputs) -> int:
        reported = self.requests[request].found_tokens
        return self.expected_cached(request, seen) if reported is None else reported

    def take_context_counts(self, now: float) -> ContextCounts | None:
        return self.reuse.take(now)

    def sent(self, request: int, prefill: PrefillWorker, decode: DecodeWorker | None) -> None:
        beginnings = self.requests[request].beginnings
        self._of(prefill).cache.add(beginnings, prefill.model.prefill_capacity_tokens - prefill.pinned_tokens)
        if decode is not None:
            room = decode.model.kv_capacity_tokens - decode.kv_tokens - decode.reserved_tokens
            self._of(decode).cache.add(beginnings, max(0, room))

    def held_tokens(self, request: int, worker: DecodeWorker) -> int:
        number, tokens = self.requests[request].held
        return tokens if number == self._of(worker).number else 0

    # Inside -----------------------------------------------------------------------------------------------------------

    def _of(self, worker: PrefillWorker | DecodeWorker) -> _Known:
        known = self._known.get(id(worker))
        if known is None or known.worker is not worker:
            self._begun += 1
            known = self._known[id(worker)] = _Known(worker, self._begun)
        return known

    def _count_reuse(self, routed: RoutedRequest, now: float) -> None:
        """Count the turn as a gateway does."""
        places, end = [], 0
        for number, tokens in routed.beginnings:
            end += tokens
            places.append((number.to_bytes(8, "little"), end))
        tokens = routed.turn.tokens
        self.reuse.count(reversed(places), tokens, routed.best_tokens, tokens - (routed.found_tokens or 0), now)

    def _view_prefill(self, worker: PrefillWorker, routed: RoutedRequest, now: float) -> SimulatedWorker:
        known = self._of(worker)
        running = worker.batch_tokens if worker.batch else 0
        whole = sum(self.requests[request].turn.tokens for request in worker.batch)
        whole += sum(tokens + cached for _, tokens, cached in worker.queue)
        return SimulatedWorker(
            number=known.number,
            cached_tokens=known.cache.cached_tokens(routed.beginnings),
            queued_s=worker.load_s(now),
            queued_tokens=worker.queued_tokens + running,
            queued_prompt_tokens=whole,
            sequences=len(worker.batch) + len(worker.queue),
            held_tokens=worker.pinned_tokens,
            token_s=worker.model.prefill.per_token_s,
            empty_tokens=max(0, worker.model.prefill_capacity_tokens - worker.pinned_tokens - known.cache.tokens),
        )

    def _view_decode(self, worker: DecodeWorker, routed: RoutedRequest) -> SimulatedWorker:
        known = self._of(worker)
        held = worker.kv_tokens + worker.reserved_tokens + worker.waiting_tokens
        return SimulatedWorker(
            number=known.number,
            cached_tokens=known.cache.cached_tokens(routed.beginnings),
            queued_s=0.0,
            queued_tokens=worker.reserved_tokens + worker.waiting_tokens,
            queued_prompt_tokens=worker.reserved_tokens + worker.waiting_tokens,
            sequences=len(worker.active) + len(worker.reserved) + len(worker.waiting),
            held_tokens=held,
            token_s=0.0,
            empty_tokens=max(0, worker.model.kv_capacity_tokens - held - known.cache.tokens),
        )
