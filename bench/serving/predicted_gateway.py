"""A gateway process as `goodput_predicted` has it: the real rules of routing and waiting, its own view of workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from bench.serving.mixes import TTFT_S, Point
from bench.serving.predicted_worker import Machine

from baton_control.sizing.inputs.workload import Workload
from baton_gateway.requests.own_rounds import holding_message
from baton_gateway.workers.linked_workers import LinkedWorker
from baton_gateway.workers.pool_load import is_backed_up, own_prefill
from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, pick
from baton_wire.messages.gateway_link import Holding, WorkerState
from baton_wire.messages.values import Address, PairFingerprint, Role
from baton_wire.rules.gateway_rounds import Urgency
from baton_wire.rules.prompt_order import PromptOrder

LOOK_S: Final = 0.05
"""As in `held_runs`."""


class PredictedGateway:
    """One process; `World` has the clock and the workers."""

    def __init__(  # noqa: PLR0913 - one call site: the simulated world hands over its clock, network and dice
        self,
        point: Point,
        workload: Workload,
        policy: RoutePolicy,
        fingerprint: PairFingerprint,
        machines: Sequence[Machine],
        clock: Callable[[], float],
        at: Callable[[float, Callable[[], None]], None],
        send: Callable[[int, Route], None],
        tell_holding: Callable[[bytes, Holding], None],
        dice: random.Random,
        ttft_s: float = TTFT_S,
    ) -> None:
        """`send`: a request to where its route says. `tell_holding`: to the worker of that epoch."""
        self._point, self._workload, self._policy, self._fingerprint = point, workload, policy, fingerprint
        self._clock, self._at, self._send_to, self._tell_holding = clock, at, send, tell_holding
        self._dice = dice
        self.linked = {
            machine.hello.epoch: LinkedWorker(
                machine.hello, Address("h", 1), cast(Any, None), lambda message: True, clock
            )
            for machine in machines
        }
        self._held: PromptOrder[int] = PromptOrder(ttft_s)
        self._ttft_s = ttft_s
        self.local = self.held = self.kept = 0
        self._looks_s = -1.0
        self._free_s = 0.0
        self._told: Urgency | None = None
        self._keeper = min(epoch for epoch, linked in self.linked.items())

    def done_s(self, at_s: float, work_s: float) -> float:
        """When its process is done with what reaches it then; it does one thing after another."""
        self._free_s = max(self._free_s, at_s) + work_s
        return self._free_s

    def reported(self, epoch: bytes, state: WorkerState) -> None:
        self.linked[epoch].record_report(state)
        self.look()

    def arrived(self, request: int) -> None:
        route = self._choose(request)
        if not route.is_decode_local and (len(self._held) or self._is_backed_up() or self._turn_in_s() != 0.0):
            self.held += 1
            self._held.push(request, float(self._workload.arrival_s[request]), route.own_s)
            self._tell(self._held.urgency())
            self._look_at(self._clock() + LOOK_S)
            return
        self._send(request, route)

    def look(self) -> None:
        urgency = None
        while len(self._held):
            request = self._held.first(self._clock(), own_prefill(self._views(), self._fingerprint))
            urgency, wait_s = self._held.urgency(), self._turn_in_s()
            if wait_s != 0.0:
                self._look_at(self._clock() + (wait_s or LOOK_S))
                break
            route = self._choose(request)
            if not route.is_decode_local and self._is_backed_up():
                self._look_at(self._clock() + LOOK_S)
                break
            if not route.is_decode_local:
                self.linked[self._keeper].turn_taken_s += self._held.own_s()
            self._held.pop()
            self._send(request, route)
            urgency = None
        self._tell(urgency)

    def _turn_in_s(self) -> float | None:
        workers = sum(linked.role is Role.PREFILL for linked in self.linked.values())
        return self.linked[self._keeper].turn_in_s(max(1, workers))

    def _tell(self, urgency: Urgency | None) -> None:
        if urgency != self._told:
            self._told = urgency
            holding = Holding(None) if urgency is None else holding_message(urgency, self._clock())
            self._tell_holding(self._keeper, holding)

    def _look_at(self, at_s: float) -> None:
        """Once more, unless it is to look sooner."""
        if not self._clock() < self._looks_s <= at_s:
            self._looks_s = at_s
            self._at(at_s, lambda: self.look() if self._looks_s == at_s else None)

    def _is_backed_up(self) -> bool:
        return is_backed_up(self._views(), self._fingerprint, self._ttft_s, self._point.tpot_ms / 1e3)

    def _views(self) -> list[Any]:
        return [linked.view() for linked in self.linked.values()]

    def _choose(self, request: int) -> Route:
        prompt, output = int(self._workload.prompt_tokens[request]), int(self._workload.output_tokens[request])
        query = RouteQuery(self._fingerprint, prompt, prompt + output, 1, frozenset(), tie=self._dice.getrandbits(64))
        route = pick(query, self._views(), self._policy)
        assert isinstance(route, Route)
        return route

    def _send(self, request: int, route: Route) -> None:
        prompt = int(self._workload.prompt_tokens[request])
        self.linked[route.decode].record_sent(prompt, is_computed=route.prefill is None)
        if route.prefill is not None:
            self.linked[route.prefill].record_sent(prompt)
        self.local += route.is_decode_local
        self.kept += route.is_prefill_local
        self._send_to(request, route)
