"""Runs that wait at the gateway until a worker is nearly idle, in the order of `baton_wire.rules.prompt_order`.

A prompt that waits at a worker is bound to it: it stays queued after a long one although a neighbour falls idle or a
new worker starts. So while all workers are busy, prompts wait here and go to the first worker with room. A request of
many runs is released piece by piece: runs beyond its share of the decode workers' slots wait here until its first
runs end.

Where several tenants ask, each takes at most a multiple of the slots that it leaves free, so that another tenant's
request always finds some. A tenant with nothing at work waits for no slot: its first token comes from a prefill
worker. Nor does it wait for one other tenant's prompts at a prefill worker, because turns are fair there, too.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from baton_gateway.errors import Problem
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.model_load import LIGHT_SHARE, ModelLoad, PoolCapacity
from baton_gateway.requests.own_rounds import OwnRounds
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
    own_slots,
)
from baton_gateway.workers.route import Route
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.fair_loop.charging import process_context
from baton_wire.messages.values import PairFingerprint, Role
from baton_wire.rules.fair_share import GATEWAY_GREED, may_take
from baton_wire.rules.gateway_rounds import Urgency
from baton_wire.rules.prompt_order import PromptOrder, busy_s

SWEEP_S = 1.0
"""How often late runs of requests that have ended are dropped: their turn may be far away."""
LOOK_S = 0.05
"""How often held runs are checked without a report: a worker's load shrinks by the clock."""
LEAST_LOOK_S = 0.003
"""Least time between two checks, however often there may be room."""

TENANT_GREED = 16.0
"""How many times the slots that it leaves free a tenant may take: alone 16/17 of them, two tenants 16/33 each (see
`fair_share`), with other weights more or less. Light tenants may take any free slot."""
ENCODED_ROUNDS = 2
"""Prompts to encode that may be at a prefill worker at once, for each of its slots: each takes its slot for a step."""
LONG_SHARE = 0.5
"""A share of the TTFT target. A light tenant does not wait here for a prefill worker that is busy for longer."""

Held = tuple[LiveRequest, PickRoute]


class RunRouter(Protocol):
    """Routes runs, and knows the requests that they belong to."""

    def choose(self, live: LiveRequest, action: PickRoute) -> Route | Problem:
        """Where the run would go now."""
        ...

    def release(self, live: LiveRequest, action: PickRoute) -> Route | None:
        """Send a run whose turn has come. None: its request is over, or no workers can take it."""
        ...

    def may_grow(self, live: LiveRequest, sequences: int) -> bool:
        """Return whether admission lets this many more sequences of the request run."""
        ...

    def load_of(self, live: LiveRequest) -> ModelLoad:
        """The load of the request's model."""
        ...


class HeldRuns:
    """One queue per revision: a revision with room does not wait for another."""

    def __init__(self, table: WorkerTable, router: RunRouter) -> None:
        self._table = table
        self._rounds = OwnRounds(table)
        self._router = router
        self._loads: dict[PairFingerprint, ModelLoad] = {}
        """The model's load of each revision with a queue."""
        self._ttft_s = 0.0
        self._tpot_s: float | None = None
        """The latest request's; all requests of a deployment have the same targets."""
        self._queues: dict[PairFingerprint, PromptOrder[Held]] = {}
        self._unmeasured: set[PairFingerprint] = set()
        """Revisions that held runs before a worker's speed was known, so without their durations."""
        self._urgent: dict[PairFingerprint, Urgency] = {}
        """The most urgent run of each queue, as of the last check."""
        self._pieces: dict[int, deque[Held]] = {}
        """Runs beyond their request's share, by ticket."""
        self._timer: asyncio.TimerHandle | None = None
        self._context = process_context()
        """The context of the timer, which releases runs of all tenants."""
        self._swept_s = self._checked_s = 0.0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values()) + sum(map(len, self._pieces.values()))

    def __iter__(self) -> Iterator[Held]:
        for queue in self._queues.values():
            yield from queue
        for pieces in self._pieces.values():
            yield from pieces

    def num_in_time(self, fingerprint: PairFingerprint | None) -> int:
        """The number of the revision's runs that wait for prefill workers and are not late."""
        queue = None if fingerprint is None else self._queues.get(fingerprint)
        return 0 if queue is None else queue.num_in_time

    def holds(
        self, live: LiveRequest, action: PickRoute, route: Route | Problem, ttft_s: float, tpot_s: float | None = None
    ) -> bool:
        """Take the run if it has to wait for its turn; False: it goes now. A run that workers had before never waits.
        One with a decode-local route waits for decode workers only, a prefill-local one for prefill workers only.
        """
        if not action.is_first or isinstance(route, Problem):
            return False
        fingerprint, self._ttft_s, self._tpot_s = live.fingerprint, ttft_s, tpot_s
        assert fingerprint is not None
        if not self._is_within_share(live, action):
            self._pieces.setdefault(live.ticket, deque()).append((live, action))
            self._check_later()
            return True
        if not self._has_to_wait(live, action, route, fingerprint):
            return False
        queue = self._queues.setdefault(fingerprint, PromptOrder(ttft_s))
        tenant, self._loads[fingerprint] = live.tenant, self._router.load_of(live)
        if not self._is_measured(fingerprint):
            self._unmeasured.add(fingerprint)
        queue.push((live, action), live.life.arrived_s, route.own_s, tenant.name, tenant.weight)
        self._urgent[fingerprint] = queue.urgency()
        self._rounds.announce(self._urgent, asyncio.get_running_loop().time())
        if self._goes_first(live, fingerprint):
            self._check_soon()  # there may be room for it now
        else:
            self._check_later()
        return True

    def _goes_first(self, live: LiveRequest, fingerprint: PairFingerprint) -> bool:
        """Return whether the tenant's held runs go before those of others: it has nothing at work, or is light."""
        load, now = self._router.load_of(live), asyncio.get_running_loop().time()
        if not load.sequences(live.tenant.name):
            return True
        return load.is_light(live.tenant.name, self._capacity(load, fingerprint), now)

    def _capacity(self, load: ModelLoad, fingerprint: PairFingerprint) -> PoolCapacity:
        views = self._table.views()
        return load.capacity(
            own_prefill(views, fingerprint), own_slots(views, fingerprint), asyncio.get_running_loop().time()
        )

    def _is_within_share(self, live: LiveRequest, action: PickRoute) -> bool:
        """A request's first run always is, and with it every request of one run."""
        own = live.life.sequences_at_work
        if not own:
            return True
        assert live.fingerprint is not None
        views = self._table.views()
        if live.is_encoded:  # slots of prefill workers are free again after a step: this process counts by itself
            slots = ENCODED_ROUNDS * num_slots(views, live.fingerprint, Role.PREFILL)
            free = max(0, slots - self._router.load_of(live).num_sequences)
        else:
            free = free_sequences(views, live.fingerprint)
        return may_take(own, action.choices, free, GATEWAY_GREED) and self._router.may_grow(live, action.choices)

    def _has_to_wait(self, live: LiveRequest, action: PickRoute, route: Route, fingerprint: PairFingerprint) -> bool:
        if not route.is_prefill_local and self._waits_for_slots(live, action, self._table.views(), fingerprint):
            return True
        if route.is_decode_local:
            return False
        if fingerprint in self._queues or not self._has_room(route.prefill or route.decode, fingerprint):
            return not self._goes_ahead(live, action, route, fingerprint)
        return self._rounds.wait_s(fingerprint) != 0.0

    def _goes_ahead(self, live: LiveRequest, action: PickRoute, route: Route, fingerprint: PairFingerprint) -> bool:
        """Return whether the run goes although every worker is busy: all are busy for long, and in their fair turns it
        has no more before it than a prompt may. So one tenant's long prompt holds up no other tenant.
        """
        load, tenant = self._router.load_of(live), live.tenant
        if not load.is_shared(tenant.name, asyncio.get_running_loop().time()):
            return False
        before_s = load.sent_before(tenant.name, action.tokens) * route.own_s / max(1, action.tokens)
        if before_s > busy_s(self._ttft_s):
            return False
        return least_prompts_s(self._table.views(), fingerprint, self._tpot_s) > LONG_SHARE * self._ttft_s

    def _waits_for_slots(
        self, live: LiveRequest, action: PickRoute, views: Sequence[WorkerView], fingerprint: PairFingerprint
    ) -> bool:
        """Return whether the run has to wait for slots of decode workers."""
        load, tenant = self._router.load_of(live), live.tenant
        if load.is_shared(tenant.name, asyncio.get_running_loop().time()):
            own, light = load.sequences(tenant.name), LIGHT_SHARE * num_slots(views, fingerprint)
            if not own and load.most_sequences() > light:
                return False
            free, greed = free_sequences(views, fingerprint), TENANT_GREED * load.relative_weight(tenant.name)
            if own > light and not may_take(own, action.choices, free, greed):
                return True
        return is_full(views, fingerprint, self._router.load_of(live).output_tokens)

    def _has_room(self, chosen: bytes, fingerprint: PairFingerprint) -> bool:
        """Return whether any worker has room. Usually the chosen one does, which is cheaper to check alone."""
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
        route = self._router.choose(live, action)
        if not isinstance(route, Route):
            return False
        is_busy = is_busy and not self._goes_ahead(live, action, route, fingerprint)
        return not is_busy if route.is_prefill_local else not is_held_up and (route.is_decode_local or not is_busy)

    def note_room(self) -> None:
        """A prompt was computed or a sequence ended: there may be room for others."""
        if self._queues or self._pieces:
            self._check_soon()

    def release_ready(self) -> None:
        """Release runs whose turn has come. Called when a worker reported, joined or left, and by the clock."""
        now = self._checked_s = asyncio.get_running_loop().time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queues or self._pieces:
            self._table.refresh()
        is_due = now - self._swept_s >= SWEEP_S
        self._swept_s = now if is_due else self._swept_s
        for fingerprint, queue in list(self._queues.items()):
            if is_due:
                queue.drop_late(lambda held: held[0].life.stage is Stage.ENDED)
            if fingerprint in self._unmeasured:
                queue = self._measured(fingerprint, queue)
            self._release_in_turn(fingerprint, queue, now, own_prefill(self._table.views(), fingerprint))
            if not queue:
                self._queues.pop(fingerprint, None)
                self._urgent.pop(fingerprint, None)
                self._loads.pop(fingerprint, None)
                self._unmeasured.discard(fingerprint)
        self._rounds.announce(self._urgent, now)
        self._release_pieces()
        self._check_later()

    def _is_measured(self, fingerprint: PairFingerprint) -> bool:
        """Return whether the speed of any of the revision's workers is known."""
        return any(worker.token_s for worker in self._table.views() if worker.fingerprint == fingerprint)

    def _measured(self, fingerprint: PairFingerprint, queue: PromptOrder[Held]) -> PromptOrder[Held]:
        """The queue in the order of the runs' durations, once a worker's first report tells them."""
        if not self._is_measured(fingerprint):
            return queue
        self._unmeasured.discard(fingerprint)
        ordered: PromptOrder[Held] = PromptOrder(self._ttft_s)
        for live, action in sorted(queue, key=lambda held: held[0].life.arrived_s):
            route, tenant = self._router.choose(live, action), live.tenant
            own_s = route.own_s if isinstance(route, Route) else 0.0
            ordered.push((live, action), live.life.arrived_s, own_s, tenant.name, tenant.weight)
        self._queues[fingerprint] = ordered
        return ordered

    def _release_in_turn(
        self, fingerprint: PairFingerprint, queue: PromptOrder[Held], now: float, workers: float
    ) -> None:
        """Release runs while workers have room and it is this gateway's turn. A run for which admission has no room
        any more waits with the pieces: when it came, no run of its request was at work."""
        while queue:
            first = queue.first(now, workers, self._leads(fingerprint, now))
            self._urgent[fingerprint] = queue.urgency()
            if self._rounds.wait_s(fingerprint) != 0.0 or not self._is_open(*first, fingerprint):
                return
            own_s = queue.own_s()
            live, action = queue.pop()
            if live.life.sequences_at_work and not self._router.may_grow(live, action.choices):
                self._pieces.setdefault(live.ticket, deque()).append((live, action))
                continue
            route = self._router.release(live, action)
            is_prefilled = route is not None and not route.is_decode_local
            self._rounds.record_sent(fingerprint, own_s if is_prefilled else 0.0)

    def _leads(self, fingerprint: PairFingerprint, now: float) -> Callable[[str], float]:
        """A function from a tenant to how far it is ahead of its fair share. Infinite: it has its share of the slots
        and waits for its own sequences to end, which holds up no other tenant."""
        load, views = self._loads[fingerprint], self._table.views()
        capacity = self._capacity(load, fingerprint)
        free, light = free_sequences(views, fingerprint), LIGHT_SHARE * num_slots(views, fingerprint)

        def lead(tenant: str) -> float:
            own = load.sequences(tenant)
            if own > light and not may_take(own, 1, free, TENANT_GREED * load.relative_weight(tenant)):
                return math.inf
            return load.lead(tenant, capacity, now)

        return lead

    def _release_pieces(self) -> None:
        """Release one run of each split request in turn, of the tenant with the fewest sequences first. Requests that
        have just arrived were released before."""
        going = list(self._pieces)
        while going:
            going.sort(key=self._weighted_sequences)
            going = [ticket for ticket in going if self._release_piece(ticket)]

    def _weighted_sequences(self, ticket: int) -> float:
        """Sequences that the request's tenant has at work, divided by its weight."""
        live, _ = self._pieces[ticket][0]
        return self._router.load_of(live).sequences(live.tenant.name) / live.tenant.weight

    def _release_piece(self, ticket: int) -> bool:
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
        self._router.release(live, action)
        return ticket in self._pieces

    def _check_soon(self) -> None:
        self._check_at(self._checked_s + LEAST_LOOK_S)

    def _check_later(self) -> None:
        if self._queues or self._pieces:
            waits = [self._rounds.wait_s(fingerprint) for fingerprint in self._queues]
            soonest_s = min((wait_s for wait_s in waits if wait_s), default=LOOK_S)
            self._check_at(asyncio.get_running_loop().time() + min(LOOK_S, soonest_s))

    def _check_at(self, at_s: float) -> None:
        """Check at this time, or earlier if that is planned: however many runs arrive, they put no check off."""
        loop = asyncio.get_running_loop()
        at_s = max(at_s, loop.time())
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self.release_ready, context=self._context)
