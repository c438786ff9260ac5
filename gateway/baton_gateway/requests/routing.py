"""Routes runs: chooses the revision and the workers, and remembers prefixes and failures of workers."""

from __future__ import annotations

import random

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.requests.failing_workers import FailingWorkers
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.request_events import PickRoute
from baton_gateway.workers.affinity import PrefixAffinity
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, pick, revisions
from baton_wire.messages.values import PairFingerprint


class Routing:
    """Applies the pure rules of `route` to the workers that are linked now."""

    def __init__(self, table: WorkerTable, dice: random.Random) -> None:
        self._table = table
        self._affinity = PrefixAffinity()
        self._dice = dice
        self.failing = FailingWorkers()

    def choose_revision(self, model: str, policy: RoutePolicy) -> PairFingerprint | Problem:
        """Choose a revision that can be served now, in proportion to its decode workers. Raises RefusedError for an
        unknown model; before the first worker is linked, no model is known to be unknown.
        """
        counts = revisions(self._table.views(), model, policy)
        if counts:
            return self._dice.choices(list(counts), list(counts.values()))[0]
        served = self._table.served_names()
        if served and model not in served:
            raise RefusedError(errors.model_not_found(model, served))
        return errors.no_workers()

    def choose(self, live: LiveRequest, action: PickRoute, policy: RoutePolicy, now: float) -> Route | Problem:
        """Choose workers of the request's revision for this run."""
        assert live.fingerprint is not None
        prefix, avoid = live.prefixes[action.prompt], action.avoid | self.failing.avoided(now)
        query = RouteQuery(
            live.fingerprint, action.tokens, action.total_tokens, action.choices, avoid, prefix, action.retained_by
        )
        return self._pick(query, policy)

    def _pick(self, query: RouteQuery, policy: RoutePolicy) -> Route | Problem:
        return pick(query, self._table.views(), policy, self._affinity, self._dice.random())

    def is_superseded(self, live: LiveRequest, policy: RoutePolicy) -> bool:
        """Return whether the request's revision cannot be served any more, but another one of its model can."""
        others = revisions(self._table.views(), live.request.options.model, policy)
        return bool(others) and live.fingerprint not in others

    def cached_tokens(self, prefix: tuple[bytes, ...]) -> int:
        """Tokens of a prompt's beginning that were sent to some worker before."""
        return self._affinity.seen_tokens(prefix)

    def record(self, route: Route, prefix: tuple[bytes, ...]) -> None:
        """Remember that a run with this prefix was sent to these workers."""
        self._affinity.record([epoch for epoch in (route.prefill, route.decode) if epoch is not None], prefix)
