"""Runs that wait for workers to be nearly done, in the order of `baton_wire.rules.prompt_order`.

A prompt that waits at a worker is bound to it: it stays behind a long one although a neighbour falls idle or a new
worker comes. So while all are busy prompts wait here instead, and go to whoever has room first. A request of many runs
is let out piece by piece: what is beyond its share of the decode workers' slots waits here until its first runs end.

Where several tenants ask, each holds at most a multiple of the slots that it leaves free, so that another one's request
always finds some. A tenant with nothing at work waits for no slot: its first token comes from a prefill worker. Nor
does it wait here for what one other tenant has at a prefill worker, where turns are fair, too.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from baton_gateway.errors import Problem
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.model_line import LIGHT_SHARE, ModelLine
from baton_gateway.requests.own_rounds import OwnTurns
from baton_gateway.requests.request import Stage
from baton_gateway.requests.request_events import PickRoute
from baton_gateway.workers.linked_workers import WorkerTable
from baton_gateway.workers.pool_load import (
    free_sequences,
    is_backed_up,
    is_full,
    least_prompts_s,
    num_slots,
    own_prefill,
)
from baton_gateway.workers.route import Route
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import PairFingerprint
from baton_wire.rules.fair_share import GATEWAY_GREED, may_take
from baton_wire.rules.gateway_rounds import Urgency
from baton_wire.rules.prompt_order import PromptOrder, busy_s

SWEEP_S = 1.0
"""How often late runs whose requests ended meanwhile are dropped: their turn may be far away."""
LOOK_S = 0.05
"""How often held runs are looked at without a report: what a worker computes shrinks by the clock."""

TENANT_GREED = 16.0
"""Of the slots that it leaves free, how many times as many a tenant may hold beside others: alone 16/17, two tenants
16/33 each (see `fair_share`). Light tenants may take what there is."""
LONG_SHARE = 0.5
"""Of the TTFT target, work of a prefill worker that a light tenant does not wait for here."""

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
        line_of: Callable[[LiveRequest], ModelLine] | None = None,
    ) -> None:
        """`let_go` routes a run whose turn has come and says where to, or drops it if its request is over: None.
        `output_tokens`: of a sequence of the request's model, as a rule. `may_grow`: whether its tenant may have so
        many sequences more. `choose`: where it would go now. `line_of`: the line of its model, which knows what tenants
        have at work; None: nobody has anything.
        """
        self._table = table
        self._turns = OwnTurns(table)
        self._let_go = let_go
        self._output_tokens, self._may_grow, self._choose = output_tokens, may_grow, choose
        nobody = ModelLine()
        self._line_of = line_of or (lambda live: nobody)
        self._lines: dict[PairFingerprint, ModelLine] = {}
        """Of what waits in the queue of that revision."""
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
        if not self._has_to_wait(live, action, route, fingerprint):
            return False
        queue = self._queues.setdefault(fingerprint, PromptOrder(ttft_s))
        tenant, self._lines[fingerprint] = live.tenant, self._line_of(live)
        queue.push((live, action), live.life.arrived_s, route.own_s, tenant.name, tenant.weight)
        self._urgent[fingerprint] = queue.urgency()
        self._turns.tell(self._urgent, asyncio.get_running_loop().time())
        if self._line_of(live).sequences(tenant.name):
            self._look_later()
        else:
            self._look_soon()  # it goes before all others, and there may be room for it now
        return True

    def _is_within_share(self, live: LiveRequest, action: PickRoute) -> bool:
        """A request's first run always is, and with it every request of one run."""
        own = live.life.sequences_at_work
        if not own:
            return True
        assert live.fingerprint is not None
        free = free_sequences(self._table.views(), live.fingerprint)
        return may_take(own, action.choices, free, GATEWAY_GREED) and self._may_grow(live, action.choices)

    def _has_to_wait(self, live: LiveRequest, action: PickRoute, route: Route, fingerprint: PairFingerprint) -> bool:
        if not route.is_kept and self._waits_for_slots(live, action, self._table.views(), fingerprint):
            return True
        if route.is_local:
            return False
        if fingerprint in self._queues or not self._has_room(route.prefill or route.decode, fingerprint):
            return not self._goes_ahead(live, action, route, fingerprint)
        return self._turns.wait_s(fingerprint) != 0.0

    def _goes_ahead(self, live: LiveRequest, action: PickRoute, route: Route, fingerprint: PairFingerprint) -> bool:
        """To a worker that is busy for long, in whose fair turns it finds no more before it than a prompt may. So what
        one other tenant has there, such as a prompt of many steps, keeps nobody waiting here.
        """
        line, tenant = self._line_of(live), live.tenant
        if not line.is_shared(tenant.name, asyncio.get_running_loop().time()):
            return False
        before_s = line.told_before(tenant.name, action.tokens) * route.own_s / max(1, action.tokens)
        if before_s > busy_s(self._ttft_s):
            return False
        return least_prompts_s(self._table.views(), fingerprint, self._tpot_s) > LONG_SHARE * self._ttft_s

    def _waits_for_slots(
        self, live: LiveRequest, action: PickRoute, views: Sequence[WorkerView], fingerprint: PairFingerprint
    ) -> bool:
        """For slots of decode workers."""
        line, tenant = self._line_of(live), live.tenant
        if line.is_shared(tenant.name, asyncio.get_running_loop().time()):
            own, light = line.sequences(tenant.name), LIGHT_SHARE * num_slots(views, fingerprint)
            if not own and line.most_sequences() > light:
                return False
            if own > light and not may_take(own, action.choices, _free(line, views, fingerprint), TENANT_GREED):
                return True
        return is_full(views, fingerprint, self._output_tokens(live))

    def _has_room(self, chosen: bytes, fingerprint: PairFingerprint) -> bool:
        """The chosen worker or any other has; mostly it is the chosen one, which is cheaper to look at alone."""
        worker = self._table.get(chosen)
        targets = self._ttft_s, self._tpot_s
        if worker is not None and worker.token_s and not is_backed_up((worker.view(),), fingerprint, *targets):
            return True
        return not is_backed_up(self._table.views(), fingerprint, *targets)

    def _is_open(self, live: LiveRequest, action: PickRoute, fingerprint: PairFingerprint) -> bool:
        views = self._table.views()
        is_held_up = self._waits_for_slots(live, action, views, fingerprint)
        is_busy = is_backed_up(views, fingerprint, self._ttft_s, self._tpot_s)
        if not is_held_up and not is_busy:
            return True
        route = self._choose(live, action)
        if not isinstance(route, Route):
            return False
        is_busy = is_busy and not self._goes_ahead(live, action, route, fingerprint)
        return not is_busy if route.is_kept else not is_held_up and (route.is_local or not is_busy)

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
                self._lines.pop(fingerprint, None)
        self._turns.tell(self._urgent, now)
        self._look_at_pieces()
        self._look_later()

    def _send_in_turn(self, fingerprint: PairFingerprint, queue: PromptOrder[Held], now: float, workers: float) -> None:
        """While there is room, and other gateways do not go first."""
        while queue:
            first = queue.first(now, workers, self._leads(fingerprint, workers, now))
            self._urgent[fingerprint] = queue.urgency()
            if self._turns.wait_s(fingerprint) != 0.0 or not self._is_open(*first, fingerprint):
                return
            own_s = queue.own_s()
            route = self._let_go(*queue.pop())
            is_theirs = route is not None and not route.is_local
            self._turns.took(fingerprint, own_s if is_theirs else 0.0)

    def _leads(self, fingerprint: PairFingerprint, workers: float, now: float) -> Callable[[str], float]:
        """Of each tenant, by how much others go before it; infinite: it has its share of the slots and waits for its
        own to end, which keeps nobody else waiting."""
        line, views = self._lines[fingerprint], self._table.views()
        free, light = _free(line, views, fingerprint), LIGHT_SHARE * num_slots(views, fingerprint)

        def lead(tenant: str) -> float:
            own = line.sequences(tenant)
            if own > light and not may_take(own, 1, free, TENANT_GREED):
                return math.inf
            return line.lead(tenant, workers, now)

        return lead

    def _look_at_pieces(self) -> None:
        """One of each request, again and again, of the tenant with the fewest sequences first: newcomers have been let
        go before."""
        going = list(self._pieces)
        while going:
            going.sort(key=self._sequences_beside)
            going = [ticket for ticket in going if self._lets_a_piece_go(ticket)]

    def _sequences_beside(self, ticket: int) -> float:
        """That the tenant has at work, for its weight."""
        live, _ = self._pieces[ticket][0]
        return self._line_of(live).sequences(live.tenant.name) / live.tenant.weight

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

    def _look_soon(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(0.0, self.look)

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._queues and not self._pieces:
            self._timer = None
            return
        waits = [self._turns.wait_s(fingerprint) for fingerprint in self._queues]
        soonest_s = min((wait_s for wait_s in waits if wait_s), default=LOOK_S)
        self._timer = asyncio.get_running_loop().call_later(min(LOOK_S, soonest_s), self.look)


def _free(line: ModelLine, views: Sequence[WorkerView], fingerprint: PairFingerprint) -> int:
    """Slots of the decode workers. What ended since a worker's last report is known where nobody else sends to it."""
    free = free_sequences(views, fingerprint)
    if any(worker.gateways > 1 for worker in views):
        return free
    return max(free, num_slots(views, fingerprint) - line.num_sequences)
