"""The flexible worker's messenger: the messengers of both roles around one engine, and the role reported to gateways.

The role only decides what gateways send. Every request is accepted: a prompt to hand over by the prefill side, any
other by the decode side. So a flip ends no request: each continues on its side.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from baton_decode_worker.service import DecodeService
from baton_engine.scheduling.events import SchedulerEvent
from baton_prefill_worker.service import PrefillService
from baton_wire.messages.encoding import Encode
from baton_wire.messages.gateway_link import Cancel, Flip, Prefill, Reserve, Retarget, WorkerState
from baton_wire.messages.values import Message, Reason, RequestKey, Role
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import worker_state
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.messenger import Messenger, RunningEngine, leg_failed

log = logging.getLogger(__name__)


class FlexibleService:
    """The messenger of a flexible worker, with the threads of `Messenger`. Each request belongs to the side that opened
    it, which gets all its events."""

    def __init__(
        self,
        role: Role,
        limits: RequestLimits,
        metrics: WorkerMetrics,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
        *,
        make_prefill: Callable[..., PrefillService] = PrefillService,
        make_decode: Callable[..., DecodeService] = DecodeService,
    ) -> None:
        """`role`: the first role. Both sides are created with the other arguments."""
        self.prefill = make_prefill(replace(limits, keeps_answers=False), metrics, loop, clock)
        self.decode = make_decode(limits, metrics, loop, clock)
        self._sides: tuple[Messenger, Messenger] = (self.prefill, self.decode)
        self._loop = loop
        self.role = role
        self.flip = 0
        """Number of the last flip that was applied."""
        self.token_blocks: Callable[[int], int] = lambda blocks: blocks

    def attach(self, engine: RunningEngine) -> None:
        self._engine = engine
        for side in self._sides:
            side.attach(engine)

    @property
    def draining(self) -> bool:
        return self.decode.draining

    @property
    def open_requests(self) -> int:
        return sum(side.open_requests for side in self._sides)

    # Io thread --------------------------------------------------------------------------------------------------------

    def handle(self, link: GatewayLink, message: Message) -> None:
        match message:
            case Flip(number, role):
                self.apply_flip(number, role)
            case Cancel():
                for side in self._sides:
                    side.handle(link, message)
            case Prefill():
                self._take(self.prefill, self.decode, link, message)
            case Reserve() | Encode():
                self._take(self.decode, self.prefill, link, message)
            case Retarget():
                self.prefill.handle(link, message)

    def _take(self, side: Messenger, other: Messenger, link: GatewayLink, message: Prefill | Reserve | Encode) -> None:
        """Give the request to a side, unless its key is open on the other: the engine knows requests by key alone."""
        key = RequestKey(message.request, message.attempt)
        if other.has_open(key) or self.prefill.holds(key):
            link.send(leg_failed(key, Reason.BAD_REQUEST, "request and attempt are already open here"))
        else:
            side.handle(link, message)

    def apply_flip(self, number: int, role: Role) -> None:
        """Change the role, unless this flip or a later one was applied already. Gateways learn of it by states."""
        if number <= self.flip:
            return
        before, self.role, self.flip = self.role, role, number
        if role is before:
            return
        log.info("flip %d: %s after %s; %d prompts and %d answers go on", number, role, before, *self._open_by_side())

    def _open_by_side(self) -> tuple[int, int]:
        return self.prefill.open_requests, self.decode.open_requests

    def link_lost(self, link: GatewayLink) -> None:
        for side in self._sides:
            side.link_lost(link)

    def state(self) -> WorkerState:
        state = worker_state(self._engine.snapshot, self.draining, self.token_blocks)
        return msgspec.structs.replace(state, role=self.role, flip=self.flip)

    def leave(self) -> None:
        for side in self._sides:
            side.leave()

    def drain(self) -> None:
        for side in self._sides:
            side.drain()

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        self._loop.call_soon_threadsafe(self._deliver, snapshot, events)  # gateways first, as in `Messenger.on_events`
        for event in events:
            self._side_of(event.key).on_event(event)

    def on_cancel(self, key: RequestKey) -> None:
        self._side_of(key).on_cancel(key)

    def _side_of(self, key: RequestKey) -> Messenger:
        return self.prefill if self.prefill.holds(key) else self.decode

    # Io thread again --------------------------------------------------------------------------------------------------

    def _deliver(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        for side in self._sides:
            if own := [event for event in events if self._side_of(event.key) is side]:
                side.deliver(snapshot, own)
