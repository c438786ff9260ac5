"""The decode worker's messenger: reservations and landed KV in, tokens out.

A reservation goes gateway → engine (blocks) → transfer (landing, verification) → engine (token loop). From
`Reserved` until the transfer's `on_landed` or `on_failed` its blocks belong to the transfer: a cancel stops the
engine, is passed on to the transfer, and only the transfer's answer releases the blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton_engine.scheduling.events import Drawn, Failed, Queued, Reserved, SchedulerEvent
from baton_kv_transfer.handover import Reservation
from baton_kv_transfer.handover_steps import mark
from baton_wire.messages.gateway_link import Prefill, Reserve, Retarget
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Message, Reason, RequestKey
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.serving.engine_thread import HandoverLanded, ReleaseBlocks, ReserveBlocks, Submit
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.messenger import MAX_DETAIL, Messenger, leg_failed

SILENT = (Reason.FINISHED, Reason.CANCELLED)
"""Endings that the gateway knows already."""


class IncomingHandovers(Protocol):
    """The decode side of the hand-overs; every method is safe from any thread."""

    def queued(self, key: RequestKey, prefill_epoch: bytes, position: int, deadline_s: float) -> None: ...

    def expected(self, key: RequestKey, prefill_epoch: bytes, reservation: Reservation) -> None: ...

    def refused(self, key: RequestKey, prefill_epoch: bytes, reason: Reason, detail: str = "") -> None: ...

    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Awaited:
    """A reservation's facts that the transfer needs besides its blocks."""

    prefill_epoch: bytes
    total_tokens: int
    choices: tuple[int, ...]
    deadline_s: float


class DecodeService(Messenger):
    """The messenger of a decode worker. Besides the threads of `Messenger`: `on_landed` and `on_failed` (transfer
    thread)."""

    transfer: IncomingHandovers
    """Filled by `__main__`: it calls back into the messenger, which therefore has to exist first."""

    def __init__(
        self,
        limits: RequestLimits,
        metrics: WorkerMetrics,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(limits, metrics, loop, clock)
        self._awaited: dict[RequestKey, Awaited] = {}
        """Reservations that the engine has not granted yet: added by the io thread, removed by the engine thread."""

    def accept(self, link: GatewayLink, message: Message) -> None:
        match message:
            case Reserve():
                self._reserve(link, message)
            case Retarget(request, _, attempt) | Prefill(request, attempt):
                key, detail = RequestKey(request, attempt), "a decode worker hands nothing over"
                link.send(leg_failed(key, Reason.BAD_REQUEST, detail))

    def _reserve(self, link: GatewayLink, message: Reserve) -> None:
        spec = self._open_request(link, message, hold=False)
        if spec is None:
            return
        if message.prefill_epoch is None:  # no prefill worker takes part: the prompt is computed here
            self._engine.post(Submit(spec))
            return
        self._awaited[spec.key] = Awaited(message.prefill_epoch, len(spec.tokens), spec.choices, spec.deadline_s)
        self._engine.post(ReserveBlocks(spec))

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_event(self, event: SchedulerEvent) -> None:
        match event:
            case Reserved(key, cached_tokens, blocks):
                self._hand_to_transfer(key, cached_tokens, blocks)
            case Queued(key, position):
                awaited = self._awaited[key]
                self.transfer.queued(key, awaited.prefill_epoch, position, awaited.deadline_s)
            case Failed(key, reason, detail) if (waiting := self._awaited.pop(key, None)) is not None:
                self.transfer.refused(key, waiting.prefill_epoch, reason, detail[:MAX_DETAIL])
            case Drawn(key) if event.first_index == 1:
                mark(key, "second token drawn")

    def on_cancel(self, key: RequestKey) -> None:
        self._awaited.pop(key, None)
        self.transfer.cancelled(key)

    def _hand_to_transfer(self, key: RequestKey, cached_tokens: int, blocks: tuple[int, ...]) -> None:
        awaited = self._awaited.pop(key)
        reservation = Reservation(awaited.total_tokens, cached_tokens, blocks, awaited.choices, awaited.deadline_s)
        self.transfer.expected(key, awaited.prefill_epoch, reservation)

    # Transfer thread --------------------------------------------------------------------------------------------------

    def on_landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        if (largest := max(first.token for first in first_tokens)) >= self._limits.vocab_size:
            detail = f"first token {largest} is not below the vocabulary size {self._limits.vocab_size}"
            self.on_failed(key, Reason.KV_CORRUPT, detail)  # whatever else this prefill worker computed
            return
        self._legs.landed(key, self._clock())
        self._engine.post(HandoverLanded(key, first_tokens))

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        self._engine.post(ReleaseBlocks(key))
        self._loop.call_soon_threadsafe(self._handover_failed, key, reason, detail)

    # Io thread again --------------------------------------------------------------------------------------------------

    def _handover_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        if reason in SILENT:
            self._open.close(key)
        else:
            self._report(key, reason, detail)

    def on_sent(self, event: Drawn) -> None:
        if event.finish is not None and self._open.choice_ended(event.key, event.choice):
            self._metrics.legs[Reason.FINISHED].inc()
