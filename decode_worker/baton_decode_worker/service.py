"""The decode worker's messenger: gateway messages, engine events and transfer notices meet here and are passed on.

A reservation goes gateway → engine (blocks) → transfer (landing, verification) → engine (token loop). From
`Reserved` until the transfer's `on_landed` or `on_failed` its blocks belong to the transfer: a cancel stops the
engine, is passed on to the transfer, and only the transfer's answer releases the blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton_decode_worker.policy import AwaitHandover, Condition, PrefillHere, decide
from baton_engine.scheduling.events import Drawn, Failed, Queued, RequestKey, Reserved, SchedulerEvent
from baton_kv_transfer.handover_steps import mark
from baton_wire.messages.gateway_link import (
    Cancel,
    LegFailed,
    Message,
    Prefill,
    Reserve,
    Retarget,
    Tokens,
    WorkerState,
)
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Reason, TokenEntry
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import token_entry, worker_state
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import (
    CancelWork,
    Command,
    Drain,
    Landed,
    Release,
    ReserveBlocks,
    Submit,
)
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.intake import Limits, Refusal
from baton_worker.serving.open_requests import OpenRequests

SILENT = (Reason.FINISHED, Reason.CANCELLED)
"""Endings that the gateway already knows of."""


class Engine(Protocol):
    @property
    def snapshot(self) -> EngineSnapshot: ...

    def post(self, command: Command) -> None: ...


class Transfer(Protocol):
    """The decode side of the hand-overs; every method is safe from any thread."""

    def queued(self, request: bytes, attempt: int, prefill_epoch: bytes, position: int, deadline_s: float) -> None: ...

    def expected(
        self,
        request: bytes,
        attempt: int,
        prefill_epoch: bytes,
        total_tokens: int,
        cached_tokens: int,
        blocks: tuple[int, ...],
        choices: tuple[int, ...],
        deadline_s: float,
    ) -> None: ...

    def refused(self, request: bytes, attempt: int, prefill_epoch: bytes, reason: Reason, detail: str = "") -> None: ...

    def cancelled(self, request: bytes, attempt: int, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class Awaited:
    """What the transfer needs to know of a reservation besides its blocks."""

    prefill_epoch: bytes
    total_tokens: int
    choices: tuple[int, ...]
    deadline_s: float


class DecodeService:
    """Runs in the io thread, except for `on_events`/`on_cancel` (engine thread) and `on_landed`/`on_failed`
    (transfer thread).
    """

    _engine: Engine
    """Filled by `attach`: it calls back into the service, which therefore has to exist first."""
    transfer: Transfer
    """Filled by `__main__`, for the same reason."""

    def __init__(
        self,
        limits: Limits,
        metrics: WorkerMetrics,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the engine's: deadlines of sequences are set on it."""
        self._limits = limits
        self._clock = clock
        self._metrics = metrics
        self._loop = loop
        self._open: OpenRequests[GatewayLink] = OpenRequests()
        self._awaited: dict[RequestKey, Awaited] = {}
        """Reservations on their way through the engine: put in by the io thread, taken out by the engine thread."""
        self.draining = False
        """Gateways are told so."""
        self._is_closed = False

    def attach(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def open_requests(self) -> int:
        return len(self._open)

    def handle(self, link: GatewayLink, message: Message) -> None:
        match message:
            case Reserve():
                self._reserve(link, message)
            case Cancel(request, attempt, choice):
                key = RequestKey(request, attempt)
                if self._open.owns(key, link):
                    self._cancel(key, choice)
            case Retarget(request, _, attempt) | Prefill(request, attempt):
                link.send(LegFailed(request, attempt, Reason.BAD_REQUEST, "a decode worker hands nothing over"))

    def link_lost(self, link: GatewayLink) -> None:
        for key in self._open.keys_of(link):
            self._cancel(key, None)

    def state(self) -> WorkerState:
        return worker_state(self._engine.snapshot, self.draining)

    def leave(self) -> None:
        """Gateways are told to send nothing new; what they sent before they read it is still taken."""
        self.draining = True

    def drain(self) -> None:
        """Nothing new is taken."""
        self.draining = self._is_closed = True
        self._engine.post(Drain())

    def _reserve(self, link: GatewayLink, message: Reserve) -> None:
        key = RequestKey(message.request, message.attempt)
        condition = Condition(self._is_closed, self._open.link_of(key) is not None)
        decision = decide(message, self._limits, condition, self._clock())
        if isinstance(decision, Refusal):
            self._metrics.legs[decision.reason].inc()
            link.send(LegFailed(message.request, message.attempt, decision.reason, decision.detail[:256]))
            return
        spec = decision.spec
        self._open.open(key, spec.choices, link)
        self._metrics.prompt_tokens.inc(len(spec.tokens))
        match decision:
            case PrefillHere(spec):
                self._engine.post(Submit(spec))
            case AwaitHandover(spec, epoch):
                self._awaited[key] = Awaited(epoch, len(spec.tokens), spec.choices, spec.deadline_s)
                self._engine.post(ReserveBlocks(spec))

    def _cancel(self, key: RequestKey, choice: int | None) -> None:
        if choice is None:
            self._open.close(key)
        elif self._open.choice_ended(key, choice):
            choice = None
        self._engine.post(CancelWork(key, choice))

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        for event in events:
            match event:
                case Reserved(key, cached_tokens, blocks):
                    self._hand_to_transfer(key, cached_tokens, blocks)
                case Queued(key, position):
                    awaited = self._awaited[key]
                    self.transfer.queued(key.request, key.attempt, awaited.prefill_epoch, position, awaited.deadline_s)
                case Failed(key, reason, detail) if (waiting := self._awaited.pop(key, None)) is not None:
                    self.transfer.refused(key.request, key.attempt, waiting.prefill_epoch, reason, detail[:256])
                case Drawn(key) if event.first_index == 1:
                    mark(key, "second token drawn")
        self._loop.call_soon_threadsafe(self._deliver, snapshot, events)

    def on_cancel(self, key: RequestKey) -> None:
        self._awaited.pop(key, None)
        self.transfer.cancelled(key.request, key.attempt)

    def _hand_to_transfer(self, key: RequestKey, cached_tokens: int, blocks: tuple[int, ...]) -> None:
        awaited = self._awaited.pop(key)
        self.transfer.expected(
            key.request,
            key.attempt,
            awaited.prefill_epoch,
            awaited.total_tokens,
            cached_tokens,
            blocks,
            awaited.choices,
            awaited.deadline_s,
        )

    # Transfer thread --------------------------------------------------------------------------------------------------

    def on_landed(self, request: bytes, attempt: int, first_tokens: tuple[FirstToken, ...]) -> None:
        key = RequestKey(request, attempt)
        self._engine.post(Landed(key, first_tokens))

    def on_failed(self, request: bytes, attempt: int, reason: Reason, detail: str) -> None:
        key = RequestKey(request, attempt)
        self._engine.post(Release(key))
        self._loop.call_soon_threadsafe(self._handover_failed, key, reason, detail)

    # Io thread again --------------------------------------------------------------------------------------------------

    def _handover_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        if reason in SILENT:
            self._open.close(key)
        else:
            self._report(key, reason, detail)

    def _deliver(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        entries: defaultdict[GatewayLink, list[TokenEntry]] = defaultdict(list)
        for event in events:
            if isinstance(event, Failed):
                self._report(event.key, event.reason, event.detail)
            elif isinstance(event, Drawn) and (link := self._open.link_of(event.key)) is not None:
                self._metrics.drawn_tokens.inc(len(event.ids))
                entries[link].append(token_entry(event))
                if event.finish is not None and self._open.choice_ended(event.key, event.choice):
                    self._metrics.legs[Reason.FINISHED].inc()
        for link, batch in entries.items():
            link.send(Tokens(snapshot.steps, tuple(batch)))

    def _report(self, key: RequestKey, reason: Reason, detail: str) -> None:
        self._metrics.legs[reason].inc()
        link = self._open.close(key)
        if link is not None:
            link.send(LegFailed(key.request, key.attempt, reason, detail[:256]))
