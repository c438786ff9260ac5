"""Runs that wait for workers to be nearly done, in the order of `baton_wire.rules.prompt_order`.

A prompt that waits at a worker is bound to it: it stays behind a long one although a neighbour falls idle or a new
worker comes. So while all are busy prompts wait here instead, and go to whoever has room first. A request of many runs
is let out piece by piece: what is beyond its share of the decode workers' slots waits here until its first runs end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from baton_gateway.errors import Problem
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.own_turns import OwnTurns
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import PickRoute, Route
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.route import free_sequences, is_backed_up, is_full, own_prefill
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.fair_share import GATEWAY_GREED, may_take
from baton_wire.rules.held_turns import Urgency
from baton_wire.rules.prompt_order import PromptOrder

SWEEP_S = 1.0
"""How often late runs whose requests ended meanwhile are dropped: their turn may be far away."""
LOOK_S = 0.05
"""How often held runs are looked at without a report: what a worker computes shrinks by the clock."""

Held = tuple[LiveRequest, PickRoute]


class HeldRuns:
    """A queue for each revision: one that has room does not wait for another."""

    def __init__(
        self,
        table: WorkerTable,
        let_go: Callable[[LiveRequest, PickRoute], Route | None],
        output_tokens: Callable[[LiveRequest], float] = lambda live: 0.0,
        may_grow: Callable[[LiveRequest, int], bool] = lambda live, sequences: True,
        choose: Callable[[LiveRequest, PickRoute], Route | Problem | None] = lambda live, action: None,
    ) -> None:
        """`let_go` routes a run whose turn has come and says where to, or drops it if its request is over: None.
        `output_tokens`: of a sequence of the request's model, as a rule. `may_grow`: whether its tenant may have so
        many sequences more. `choose`: where it would go now.
        """
        self._table = table
        self._turns = OwnTurns(table)
        self._let_go = let_go
        self._output_tokens, self._may_grow, self._choose = output_tokens, may_grow, choose
        self._ttft_s = 0.0
        self._tpot_s: float | None = None
        """As last told; all requests of a deployment have the same targets."""
        self._queues: dict[PairFingerprint, PromptOrder[Held]] = {}
        self._urgent: dict[PairFingerprint, Urgency] = {}
        """The most urgent of each queue, as of the last look."""
        self._pieces: dict[int, deque[Held]] = {}
        """Runs beyond their request's share, by ticket."""
        self._timer: asyncio.TimerHandle | None = None
        self._swept_s = 0.0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values()) + sum(map(len, self._pieces.values()))

    def __iter__(self) -> Iterator[Held]:
        for queue in self._queues.values():
            yield from queue
        for pieces in self._pieces.values():
            yield from pieces

    def takes(
        self, live: LiveRequest, action: PickRoute, route: Route | Problem, ttft_s: float, tpot_s: float | None = None
    ) -> bool:
        """Whether the run waits its turn. What ran before does not; what is computed at a decode worker waits only for
        those, and an answer that is kept only for prefill workers.
        """
        if not action.is_first or isinstance(route, Problem):
            return False
        fingerprint, self._ttft_s, self._tpot_s = live.fingerprint, ttft_s, tpot_s
        assert fingerprint is not None
        if not self._is_within_share(live, action):
            self._pieces.setdefault(live.ticket, deque()).append((live, action))
            self._look_later()
            return True
        if not self._has_to_wait(live, route, fingerprint):
            return False
        queue = self._queues.setdefault(fingerprint, PromptOrder(ttft_s))
        tenant = live.tenant
        queue.push((live, action), live.life.arrived_s, route.own_s, tenant.name, tenant.weight)
        self._urgent[fingerprint] = queue.urgency()
        self._turns.tell(self._urgent, asyncio.get_running_loop().time())
        self._look_later()
        return True

    def _is_within_share(self, live: LiveRequest, action: PickRoute) -> bool:
        """A request's first run always is, and with it every request of one run."""
        own = live.life.sequences_at_work
        if not own:
            return True
        assert live.fingerprint is not None
        free = free_sequences(self._table.views(), live.fingerprint)
        return may_take(own, action.choices, free, GATEWAY_GREED) and self._may_grow(live, action.choices)

    def _has_to_wait(self, live: LiveRequest, route: Route, fingerprint: PairFingerprint) -> bool:
        if not route.is_kept and is_full(self._table.views(), fingerprint, self._output_tokens(live)):
            return True
        if route.is_local:
            return False
        if fingerprint in self._queues or not self._has_room(route.prefill or route.decode, fingerprint):
            return True
        return self._turns.wait_s(fingerprint) != 0.0

    def _has_room(self, chosen: bytes, fingerprint: PairFingerprint) -> bool:
        """The chosen worker or any other has; mostly it is the chosen one, which is cheaper to look at alone."""
        worker = self._table.get(chosen)
        targets = self._ttft_s, self._tpot_s
        if worker is not None and worker.token_s and not is_backed_up((worker.view(),), fingerprint, *targets):
            return True
        return not is_backed_up(self._table.views(), fingerprint, *targets)

    def _is_open(self, live: LiveRequest, action: PickRoute, fingerprint: PairFingerprint) -> bool:
        views = self._table.views()
        is_held_up = is_full(views, fingerprint, self._output_tokens(live))
        is_busy = is_backed_up(views, fingerprint, self._ttft_s, self._tpot_s)
        if not is_held_up and not is_busy:
            return True
        route = self._choose(live, action)
        if not isinstance(route, Route):
            return False
        return (route.is_kept and not is_busy) or (route.is_local and not is_held_up)

    def look(self) -> None:
        """Let go whose turn has come: a worker reported, came or went, or time has passed."""
        now = asyncio.get_running_loop().time()
        is_due = now - self._swept_s >= SWEEP_S
        self._swept_s = now if is_due else self._swept_s
        for fingerprint, queue in list(self._queues.items()):
            if is_due:
                queue.drop_late(lambda held: held[0].life.stage is Stage.ENDED)
            self._send_in_turn(fingerprint, queue, now, own_prefill(self._table.views(), fingerprint))
            if not queue:
                self._queues.pop(fingerprint, None)
                self._urgent.pop(fingerprint, None)
        self._turns.tell(self._urgent, now)
        self._look_at_pieces()
        self._look_later()

    def _send_in_turn(self, fingerprint: PairFingerprint, queue: PromptOrder[Held], now: float, workers: float) -> None:
        """While there is room, and other gateways do not go first."""
        while queue:
            first = queue.first(now, workers)
            self._urgent[fingerprint] = queue.urgency()
            if self._turns.wait_s(fingerprint) != 0.0 or not self._is_open(*first, fingerprint):
                return
            own_s = queue.own_s()
            route = self._let_go(*queue.pop())
            is_theirs = route is not None and not route.is_local
            self._turns.took(fingerprint, own_s if is_theirs else 0.0)

    def _look_at_pieces(self) -> None:
        """One of each request, again and again: newcomers have been let go before."""
        going = list(self._pieces)
        while going:
            going = [ticket for ticket in going if self._lets_a_piece_go(ticket)]

    def _lets_a_piece_go(self, ticket: int) -> bool:
        pieces = self._pieces[ticket]
        live, action = pieces[0]
        if live.life.stage is Stage.ENDED:
            del self._pieces[ticket]
            return False
        assert live.fingerprint is not None
        if not self._is_within_share(live, action) or not self._is_open(live, action, live.fingerprint):
            return False
        pieces.popleft()
        if not pieces:
            del self._pieces[ticket]
        self._let_go(live, action)
        return ticket in self._pieces

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._queues and not self._pieces:
            self._timer = None
            return
        waits = [self._turns.wait_s(fingerprint) for fingerprint in self._queues]
        soonest_s = min((wait_s for wait_s in waits if wait_s), default=LOOK_S)
        self._timer = asyncio.get_running_loop().call_later(min(LOOK_S, soonest_s), self.look)
