"""A worker's messenger: gateway messages, engine events and transfer notices meet here and are passed on.

Holds which gateway owns which request. What both roles do alike is here: admit or refuse, cancel, say how a request
ends, drain. The roles add what a message means to them, what the transfer hears of the engine, and what it answers.
Its three threads are drawn in docs/decisions/threads-and-block-ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from baton_engine.scheduling.events import Drawn, Failed, PromptScored, SchedulerEvent, SequenceSpec
from baton_wire.errors import BadFieldsError
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.gateway_link import Cancel, Flip, LegFailed, Prefill, Reserve, Tokens, WorkerState
from baton_wire.messages.values import Message, Reason, RequestKey, TokenEntry
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import prompt_logprobs, token_entry, token_messages, worker_state
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import CancelWork, Command, Drain
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.intake import sequence_spec
from baton_worker.serving.open_requests import OpenRequests

log = logging.getLogger(__name__)

MAX_DETAIL = 256
"""Characters of a reason that travel."""


class RunningEngine(Protocol):
    """What a messenger needs of the engine thread."""

    @property
    def snapshot(self) -> EngineSnapshot: ...

    def post(self, command: Command) -> None: ...


class Messenger(ABC):
    """Runs in the io thread, except for `on_events` and `on_cancel` (engine thread)."""

    _engine: RunningEngine
    """Filled by `attach`: it calls back into the messenger, which therefore has to exist first."""

    def __init__(
        self,
        limits: RequestLimits,
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
        self.draining = False
        """Gateways are told so."""
        self.token_blocks: Callable[[int], int] = lambda blocks: blocks
        """From blocks of the pool to those that gateways reckon with."""
        self._is_closed = False
        self._complaints = Complaints(log)

    def attach(self, engine: RunningEngine) -> None:
        self._engine = engine

    @property
    def open_requests(self) -> int:
        return len(self._open)

    # Io thread --------------------------------------------------------------------------------------------------------

    def handle(self, link: GatewayLink, message: Message) -> None:
        if isinstance(message, Cancel):
            key = RequestKey(message.request, message.attempt)
            if self._open.owns(key, link):
                self._cancel(key, message.choice)
        elif isinstance(message, Flip):
            log.warning("flip %d to %s is refused: this worker has one role only", message.number, message.role)
        else:
            self.accept(link, message)

    def link_lost(self, link: GatewayLink) -> None:
        for key in self._open.keys_of(link):
            self._cancel(key, None)

    def state(self) -> WorkerState:
        return worker_state(self._engine.snapshot, self.draining, self.token_blocks)

    def leave(self) -> None:
        """Gateways are told to send nothing new; what they sent before they read it is still taken."""
        self.draining = True

    def drain(self) -> None:
        """Nothing new is taken."""
        self.draining = self._is_closed = True
        self._engine.post(Drain())

    @abstractmethod
    def accept(self, link: GatewayLink, message: Message) -> None:
        """Do what the role does with any message but a Cancel or a Flip."""

    def has_open(self, key: RequestKey) -> bool:
        """Whether the request is open here, under the attempt that its gateway knows."""
        return self._open.link_of(key) is not None

    def _opened(self, link: GatewayLink, message: Prefill | Reserve, *, hold: bool) -> SequenceSpec | None:
        """The request for the engine, open from now on; None after it was refused with a typed reason."""
        key = RequestKey(message.request, message.attempt)
        spec: SequenceSpec | Failed
        if self._open.link_of(key) is not None:
            spec = Failed(key, Reason.BAD_REQUEST, "request and attempt are already open here")
        elif self._is_closed:
            spec = Failed(key, Reason.DRAINING, "this worker is draining")
        else:
            spec = sequence_spec(message, self._limits, self._clock(), hold=hold)
        if isinstance(spec, Failed):
            self._metrics.legs[spec.reason].inc()
            link.send(leg_failed(key, spec.reason, spec.detail))
            return None
        self._open.open(key, spec.choices, link)
        self._metrics.prompt_tokens.inc(len(spec.tokens))
        return spec

    def _cancel(self, key: RequestKey, choice: int | None) -> None:
        """Stop a request, or one choice of it. The transfer hears of it from the engine (`on_cancel`)."""
        if choice is None:
            self._open.close(key)
        elif self._open.choice_ended(key, choice):
            choice = None
        self._engine.post(CancelWork(key, choice))

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        # Gateways first: the transfer may end a request at once, and with that the io thread forgets whom to tell.
        self._loop.call_soon_threadsafe(self.deliver, snapshot, events)
        for event in events:
            self.on_event(event)

    @abstractmethod
    def on_event(self, event: SchedulerEvent) -> None:
        """Tell the transfer what concerns it."""

    @abstractmethod
    def on_cancel(self, key: RequestKey) -> None:
        """Tell the transfer that the whole request was cancelled."""

    # Io thread again --------------------------------------------------------------------------------------------------

    def deliver(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        """Tell gateways what came of their requests; called by `on_events` in the io thread."""
        entries: defaultdict[GatewayLink, list[TokenEntry]] = defaultdict(list)
        for event in events:
            if isinstance(event, Failed):
                self._report(self.asked_as(event.key), event.reason, event.detail)
            elif isinstance(event, Drawn):
                key = self.asked_as(event.key)
                if (link := self._open.link_of(key)) is not None:
                    self._metrics.drawn_tokens.inc(len(event.ids))
                    entries[link].append(token_entry(event, key))
                    self.on_told(event)
            elif isinstance(event, PromptScored):
                key = self.asked_as(event.key)
                if (link := self._open.link_of(key)) is not None:
                    self._send_scores(link, event, key)
        for link, batch in entries.items():
            for message in token_messages(snapshot.steps, batch):
                self._send_tokens(link, message)

    def _send_scores(self, link: GatewayLink, event: PromptScored, key: RequestKey) -> None:
        try:
            for message in prompt_logprobs(event, key):
                link.send(message)
        except BadFieldsError as refusal:
            self._give_up(link, key, refusal)

    def _send_tokens(self, link: GatewayLink, message: Tokens) -> None:
        """All of them, or all but those of requests whose gateway would refuse them: these end."""
        try:
            link.send(message)
        except BadFieldsError as refusal:
            if len(message.entries) == 1:
                entry = message.entries[0]
                self._give_up(link, RequestKey(entry.request, entry.attempt), refusal)
                return
            for entry in message.entries:
                self._send_tokens(link, Tokens(message.step, (entry,)))

    def _give_up(self, link: GatewayLink, key: RequestKey, refusal: BadFieldsError) -> None:
        """What the engine produced for this request cannot be told: another worker may do better."""
        self._complaints.say("tokens are not told to their gateway", str(refusal))
        self._metrics.legs[Reason.INTERNAL].inc()
        if self._open.owns(key, link):
            self._cancel(key, None)
        link.send(leg_failed(key, Reason.INTERNAL, str(refusal)))

    def asked_as(self, key: RequestKey) -> RequestKey:
        """The attempt under which the gateway knows what the engine knows as `key`."""
        return key

    def on_told(self, event: Drawn) -> None:
        """These tokens are on their way to the request's gateway."""
        return

    def _report(self, key: RequestKey, reason: Reason, detail: str, kept: bool = False) -> None:
        """Tell the gateway that its leg failed. `kept`: this worker still holds what was computed for it."""
        self._metrics.legs[reason].inc()
        link = self._open.link_of(key) if kept else self._open.close(key)
        if link is not None:
            link.send(leg_failed(key, reason, detail, kept))


def leg_failed(key: RequestKey, reason: Reason, detail: str, kept: bool = False) -> LegFailed:
    text = detail[:MAX_DETAIL].encode(errors="replace").decode()  # half a character would not travel
    return LegFailed(key.request, key.attempt, reason, text, kept)
