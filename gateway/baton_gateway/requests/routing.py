"""Routes runs: chooses the revision and the workers, by load, failures, and what each worker has cached."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping

from baton_gateway import errors
from baton_gateway.errors import Problem, RefusedError
from baton_gateway.requests.failing_workers import FailingWorkers
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.request_events import PickRoute
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, encoding_revisions, pick, revisions
from baton_gateway.workers.sent_prompts import SentPrompts
from baton_wire.messages.values import PLACE_BYTES, PairFingerprint, Role
from baton_wire.rules.prefix_digests import DENSE_TOKENS

FRESH_S = 0.02
"""Seconds until the cached tokens of a waiting run's prompt are looked up again."""


class Routing:
    """Applies the pure rules of `route` to the workers that are linked now."""

    def __init__(self, table: WorkerTable, dice: random.Random) -> None:
        self._table = table
        self._sent = SentPrompts()
        self._dice = dice
        self.failing = FailingWorkers()

    def choose_revision(
        self, model: str, policy: RoutePolicy, *, is_encoded: bool = False
    ) -> PairFingerprint | Problem:
        """Choose a revision that can be served now, in proportion to its decode workers, or to those that encode.
        Raises RefusedError for an unknown model, and for one that does not answer; before the first worker is linked,
        no model is known to be unknown.
        """
        counts = self._revisions(model, policy, is_encoded)
        if counts:
            return self._dice.choices(list(counts), list(counts.values()))[0]
        own = [worker for worker in self._table.views() if worker.served_name == model]
        if not is_encoded and own and not any(worker.generates for worker in own):
            reason = "it makes embeddings or scores; use /v1/embeddings, /v1/rerank, /v1/score or /classify"
            raise RefusedError(errors.task_not_served(model, "generate text", reason))
        prefill = [worker for worker in own if worker.role is Role.PREFILL]
        if is_encoded and prefill and not any(worker.encoding for worker in prefill):
            raise RefusedError(errors.task_not_served(model, "embed", "its workers only generate text"))
        served = self._table.served_names()
        if served and model not in served:
            raise RefusedError(errors.model_not_found(model, served))
        return errors.no_workers()

    def choose(
        self, live: LiveRequest, action: PickRoute, policy: RoutePolicy, now: float, *, waiting: int = 0
    ) -> Route | Problem:
        """Choose workers of the request's revision for this run. `waiting`: as in `RouteQuery`."""
        assert live.fingerprint is not None
        cached = self.cached_tokens(live, action.prompt, now)
        query = RouteQuery(
            live.fingerprint,
            action.tokens,
            action.total_tokens,
            action.choices,
            action.avoid | self.failing.avoided(now),
            cached,
            self._tie(live, action.prompt, is_new=not cached),
            action.retained_by,
            is_encoded=live.is_encoded,
            waiting=waiting,
        )
        return self._pick(query, policy)

    def _revisions(self, model: str, policy: RoutePolicy, is_encoded: bool) -> dict[PairFingerprint, int]:
        views = self._table.views()
        return encoding_revisions(views, model) if is_encoded else revisions(views, model, policy)

    def _pick(self, query: RouteQuery, policy: RoutePolicy) -> Route | Problem:
        return pick(query, self._table.views(), policy)

    def is_superseded(self, live: LiveRequest, policy: RoutePolicy) -> bool:
        """Return whether the request's revision cannot be served any more, but another one of its model can."""
        others = self._revisions(live.request.options.model, policy, live.is_encoded)
        return bool(others) and live.fingerprint not in others

    def cached_tokens(self, live: LiveRequest, prompt: int, now: float) -> Mapping[bytes, int]:
        """Tokens of the prompt's beginning that each worker has cached, by epoch: as it announced, or because a prompt
        with that beginning was just sent there."""
        if live.is_encoded:  # computed whole, whatever is cached
            return {}
        known = live.cached.get(prompt)
        if known is not None and now - known[0] < FRESH_S:
            return known[1]
        assert live.fingerprint is not None
        places, tokens = live.places[prompt], dict[bytes, int]()
        for block_tokens in self._table.block_sizes(live.fingerprint):
            names = places.names(block_tokens)
            for lengths in (self._table.cached.longest(names), self._sent.longest(names, block_tokens, now)):
                for epoch, blocks in lengths.items():
                    tokens[epoch] = max(tokens.get(epoch, 0), blocks * block_tokens)
        live.cached[prompt] = now, tokens
        return tokens

    def places(self, live: LiveRequest, prompt: int) -> Iterator[tuple[bytes, int]]:
        """(name, tokens up to it) of the prompt's places, the longest first."""
        assert live.fingerprint is not None
        if live.is_encoded:
            return
        for block_tokens in self._table.block_sizes(live.fingerprint)[:1]:
            names = live.places[prompt].names(block_tokens)
            for end in range(len(names), 0, -PLACE_BYTES):
                yield names[end - PLACE_BYTES : end], end // PLACE_BYTES * block_tokens

    def record(self, live: LiveRequest, action: PickRoute, route: Route, now: float) -> None:
        """Remember that a run was sent to these workers. Of an encoded prompt they keep nothing."""
        if live.is_encoded:
            return
        sent = []
        for epoch in (route.prefill, route.decode):
            if epoch is not None and (worker := self._table.get(epoch)) is not None:
                block_tokens = worker.hello.block_tokens
                sent.append((epoch, block_tokens, live.places[action.prompt].names(block_tokens)))
        self._sent.record(action.run, sent, now)
        live.cached.pop(action.prompt, None)

    def settle(self, runs: Iterable[bytes], now: float) -> None:
        """These runs have their first tokens, or ended: their workers announce what they hold of them."""
        for run in runs:
            self._sent.settle(run, now)

    def _tie(self, live: LiveRequest, prompt: int, *, is_new: bool) -> int:
        """The number that decides between equal workers: of the session that the client names, else of the prompt's
        whole context. While no worker has anything of it, of its beginning: so all processes send the first prompts
        with a common beginning, of which they do not know of each other, to the same worker."""
        assert live.fingerprint is not None
        if live.session is not None:
            return live.session
        sizes = () if live.is_encoded else self._table.block_sizes(live.fingerprint)
        names = live.places[prompt].names(sizes[0]) if sizes else b""
        if is_new and sizes:
            names = names[: max(1, DENSE_TOKENS // sizes[0]) * PLACE_BYTES]
        return int.from_bytes(names[-PLACE_BYTES:], "little") if names else self._dice.getrandbits(64)
