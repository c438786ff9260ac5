"""The prefill worker's messenger: gateway messages, engine events and transfer notices meet here and are passed on.

Holds which gateway owns which request and nothing else. Cancels go through the transfer first: only it knows when no
write reads the sequence's blocks any more, and says so with a release.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from baton_engine.scheduling.events import Computed, Computing, Drawn, Failed, Prefilled, RequestKey, SchedulerEvent
from baton_prefill_worker.policy import Condition, decide
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
from baton_wire.messages.values import PeerRef, Reason, TokenEntry
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import token_entry, worker_state
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import CancelWork, Command, Drain, GrantedRoom, Release, Submit
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.intake import Limits, Refusal
from baton_worker.serving.open_requests import OpenRequests

STEPS_KEPT = 4
"""At most two are launched at once; a word about the older one may come late."""


class Engine(Protocol):
    @property
    def snapshot(self) -> EngineSnapshot: ...

    def post(self, command: Command) -> None: ...


class Transfer(Protocol):
    """The prefill side of the hand-overs; every method is safe from any thread."""

    def opened(self, request: bytes, attempt: int, peer: PeerRef, total_tokens: int, deadline_s: float) -> None: ...

    def retargeted(self, request: bytes, attempt: int, next_attempt: int, peer: PeerRef, deadline_s: float) -> None: ...

    def computed(self, request: bytes, attempt: int, tokens: int, blocks: tuple[int, ...]) -> None: ...

    def computing(self, request: bytes, attempt: int, tokens: int, layers: int, blocks: tuple[int, ...]) -> None: ...

    def first_tokens(self, request: bytes, attempt: int, first_tokens: tuple[FirstToken, ...]) -> None: ...

    def cancelled(self, request: bytes, attempt: int, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...


class PrefillService:
    """Runs in the io thread, except for `on_events` (engine thread) and `on_release`/`on_report` (transfer thread)."""

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
        self._opened_as: dict[RequestKey, RequestKey] = {}
        """Of requests that were sent on to another decode worker: the attempt under way → the one the engine knows."""
        self._current: dict[RequestKey, RequestKey] = {}
        """The same the other way round."""
        self._computing: dict[int, list[Computing]] = {}
        """Prompts of the latest steps, by step: put in by the engine thread, looked up by who tells of layers."""
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
            case Prefill():
                self._prefill(link, message)
            case Cancel(request, attempt):
                key = RequestKey(request, attempt)
                if self._open.owns(key, link):
                    self._cancel(key)
            case Retarget():
                self._retarget(link, message)
            case Reserve(request, attempt):
                link.send(LegFailed(request, attempt, Reason.BAD_REQUEST, "a prefill worker takes no reservations"))

    def link_lost(self, link: GatewayLink) -> None:
        for key in self._open.keys_of(link):
            self._cancel(key)

    def state(self) -> WorkerState:
        return worker_state(self._engine.snapshot, self.draining)

    def leave(self) -> None:
        """Gateways are told to send nothing new; what they sent before they read it is still taken."""
        self.draining = True

    def drain(self) -> None:
        """Nothing new is taken."""
        self.draining = self._is_closed = True
        self._engine.post(Drain())

    def _prefill(self, link: GatewayLink, message: Prefill) -> None:
        key = RequestKey(message.request, message.attempt)
        condition = Condition(self._is_closed, self._open.link_of(key) is not None)
        spec = decide(message, self._limits, condition, self._clock())
        if isinstance(spec, Refusal):
            self._metrics.legs[spec.reason].inc()
            link.send(LegFailed(message.request, message.attempt, spec.reason, spec.detail[:256]))
            return
        self._open.open(key, spec.choices, link)
        self._metrics.prompt_tokens.inc(len(spec.tokens))
        self._engine.post(Submit(spec))  # before `opened`: its release must not overtake the submit
        self.transfer.opened(key.request, key.attempt, message.decode, len(spec.tokens), spec.deadline_s)

    def _retarget(self, link: GatewayLink, message: Retarget) -> None:
        old, new = (RequestKey(message.request, number) for number in (message.attempt, message.next_attempt))
        if not self._open.owns(old, link):
            link.send(LegFailed(new.request, new.attempt, Reason.UNKNOWN_REQUEST, "nothing is held for this attempt"))
            return
        self._open.rename(old, new)
        opened = self._opened_as.pop(old, old)
        self._opened_as[new], self._current[opened] = opened, new
        deadline_s = self._clock() + message.timeout_s
        self.transfer.retargeted(opened.request, opened.attempt, new.attempt, message.decode, deadline_s)

    def _cancel(self, key: RequestKey) -> None:
        self._open.close(key)
        self._engine.post(CancelWork(self._opened_as.get(key, key)))

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        # Tokens first: the transfer may release a request whose first token was its last at once, and with that the
        # io thread forgets whom to tell.
        self._loop.call_soon_threadsafe(self._deliver, snapshot, events)
        for event in events:
            match event:
                case Computing():
                    self._start(event)
                case Computed(key, tokens, blocks):
                    self.transfer.computed(key.request, key.attempt, tokens, blocks)
                case Prefilled(key, first_tokens):
                    self.transfer.first_tokens(key.request, key.attempt, first_tokens)
                case Failed(key, reason, detail):
                    self.transfer.cancelled(key.request, key.attempt, reason, detail[:256])

    def _start(self, prompt: Computing) -> None:
        self._computing.setdefault(prompt.step, []).append(prompt)
        for step in [step for step in self._computing if step < prompt.step - STEPS_KEPT]:
            del self._computing[step]

    def on_layers(self, step: int, layers: int) -> None:
        """KV of layers [0, layers) of what `step` computes stands. On a GPU, from a thread that watches it."""
        for prompt in self._computing.get(step, ()):
            key = prompt.key
            self.transfer.computing(key.request, key.attempt, prompt.tokens, layers, prompt.blocks)

    def on_cancel(self, key: RequestKey) -> None:
        self.transfer.cancelled(key.request, key.attempt)

    # Transfer thread --------------------------------------------------------------------------------------------------

    def on_granted(self, request: bytes, attempt: int) -> None:
        self._engine.post(GrantedRoom(RequestKey(request, attempt)))

    def on_release(self, request: bytes, attempt: int) -> None:
        key = RequestKey(request, attempt)
        self._engine.post(Release(key))
        self._loop.call_soon_threadsafe(self._released, key)

    def on_report(
        self, request: bytes, attempt: int, reason: Reason, detail: str, failed_attempt: int, kept: bool
    ) -> None:
        self._loop.call_soon_threadsafe(self._report, RequestKey(request, failed_attempt), reason, detail, kept)

    # Io thread again --------------------------------------------------------------------------------------------------

    def _deliver(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        entries: defaultdict[GatewayLink, list[TokenEntry]] = defaultdict(list)
        for event in events:
            if isinstance(event, Failed):
                self._report(self._current.get(event.key, event.key), event.reason, event.detail)
            elif isinstance(event, Drawn):
                key = self._current.get(event.key, event.key)
                if (link := self._open.link_of(key)) is not None:
                    self._metrics.drawn_tokens.inc(len(event.ids))
                    entries[link].append(token_entry(replace(event, key=key)))
        for link, batch in entries.items():
            link.send(Tokens(snapshot.steps, tuple(batch)))

    def _report(self, key: RequestKey, reason: Reason, detail: str, kept: bool = False) -> None:
        self._metrics.legs[reason].inc()
        link = self._open.link_of(key) if kept else self._open.close(key)
        if link is not None:
            link.send(LegFailed(key.request, key.attempt, reason, detail[:256], kept))

    def _released(self, opened: RequestKey) -> None:
        key = self._current.pop(opened, opened)
        self._opened_as.pop(key, None)
        self._open.close(key)
