"""The gateway's own routing as a policy of simulated sessions: its rules, and what workers have cached as a fact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_gateway.errors import Problem
from baton_gateway.workers.linked_workers import LOAD_S
from baton_gateway.workers.route import RoutePolicy, RouteQuery, pick
from baton_gateway.workers.worker_view import WorkerView
from baton_simulate.sessions.routing_policy import RoutedTurn, SimulatedWorker
from baton_wire.messages.values import Address, PairFingerprint, Role

ADDRESS: Final = Address("simulated", 1)
FINGERPRINT: Final = PairFingerprint(1, "", "", "", 1, 1, 1, "", "")
BLOCK_TOKENS: Final = 64


class ProductionRouting:
    """A `RoutingPolicy` that asks `route.pick`, with mode Always."""

    def __init__(self, model: WorkerModel) -> None:
        self._model = model
        self._lately: dict[int, tuple[float, float]] = {}
        """By worker: tokens that it was sent to compute, decayed as gateways do, and until when."""

    def choose(
        self, turn: RoutedTurn, prefill: Sequence[SimulatedWorker], decode: Sequence[SimulatedWorker], now: float
    ) -> tuple[int, int]:
        views = [self._view(worker, Role.PREFILL, self._lately_tokens(worker, now)) for worker in prefill]
        views += [self._view(worker, Role.DECODE) for worker in decode]
        cached = {_epoch(worker): worker.cached_tokens for worker in (*prefill, *decode) if worker.cached_tokens}
        tie = sum(number << place for place, (number, _) in enumerate(turn.prompt))
        total = turn.tokens + turn.output_tokens
        query = RouteQuery(FINGERPRINT, turn.tokens, total, 1, frozenset(), cached, tie)
        route = pick(query, views, RoutePolicy())
        assert not isinstance(route, Problem), "simulated workers take every prompt"
        assert route.prefill is not None, "mode Always has two workers for each prompt"
        place = _place(prefill, route.prefill)
        missing = turn.tokens - prefill[place].cached_tokens
        self._lately[prefill[place].number] = self._lately_tokens(prefill[place], now) + missing, now
        return place, _place(decode, route.decode)

    def _lately_tokens(self, worker: SimulatedWorker, now: float) -> float:
        tokens, until_s = self._lately.get(worker.number, (0.0, now))
        return tokens * math.exp((until_s - now) / LOAD_S)

    def _view(self, worker: SimulatedWorker, role: Role, lately_tokens: float = 0.0) -> WorkerView:
        blocks = self._model.kv_capacity_tokens // BLOCK_TOKENS
        return WorkerView(
            epoch=_epoch(worker),
            role=role,
            served_name="simulated",
            seed=worker.number,
            fingerprint=FINGERPRINT,
            pair_address=ADDRESS,
            max_context_tokens=1 << 21,
            max_choices=1,
            block_tokens=BLOCK_TOKENS,
            blocks_total=blocks,
            blocks_free=max(0, blocks - worker.held_tokens // BLOCK_TOKENS),
            blocks_empty=worker.empty_tokens // BLOCK_TOKENS,
            load_sequences=worker.sequences,
            load_tokens=worker.queued_tokens,
            prompt_tokens=worker.queued_tokens if role is Role.PREFILL else 0,
            lately_tokens_s=lately_tokens / LOAD_S,
            max_sequences=self._model.max_sequences,
            token_s=worker.token_s if role is Role.PREFILL else None,
            more_token_s=worker.token_s if role is Role.PREFILL else None,
        )


def _epoch(worker: SimulatedWorker) -> bytes:
    return worker.number.to_bytes(16, "big")


def _place(workers: Sequence[SimulatedWorker], epoch: bytes) -> int:
    return next(place for place, worker in enumerate(workers) if _epoch(worker) == epoch)
