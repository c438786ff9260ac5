"""A worker's messenger: gateway messages, engine events and transfer notices meet here and are passed on.

Records which gateway owns which request. The part that all roles share is here: admit or refuse, cancel, report the end
of a request, drain. The roles add how they handle a message, which engine events go to the transfer, and how they
handle its notices. The three threads are drawn in docs/decisions/threads-and-block-ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from baton_engine.scheduling.events import Drawn, Failed, PromptEncoded, PromptScored, SchedulerEvent, SequenceSpec
from baton_wire.errors import BadFieldsError
from baton_wire.listening.complaints import Complaints
from baton_wire.messages.encoding import Encode, EncodedPrompt
from baton_wire.messages.gateway_link import Cancel, Flip, LegFailed, Prefill, Reserve, Tokens, WorkerState
from baton_wire.messages.values import Message, Reason, RequestKey, TokenEntry
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import prompt_logprobs, token_entry, token_messages, worker_state
from baton_worker.reporting.views import EngineSnapshot
from baton_worker.serving.engine_thread import CancelWork, Command, Drain, Submit
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.intake import encoding_spec, sequence_spec
from baton_worker.serving.leg_clock import LegClock
from baton_worker.serving.open_requests import OpenRequests

log = logging.getLogger(__name__)

MAX_DETAIL = 256
"""Most characters of a reason that are sent."""


class RunningEngine(Protocol):
    """The engine thread as a messenger uses it."""

    @property
    def snapshot(self) -> EngineSnapshot: ...

    def post(self, command: Command) -> None: ...


class Messenger(ABC):
    """A worker's messenger. Runs in the io thread, except for `on_events` and `on_cancel` (engine thread)."""

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
        """True once gateways were asked to send nothing new."""
        self.token_blocks: Callable[[int], int] = lambda blocks: blocks
        """Converts blocks of the pool to blocks as gateways count them."""
        self._is_closed = False
        self._legs = LegClock()
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
        elif isinstance(message, Encode):
            spec = self._open_request(link, message, hold=False)
            if spec is not None:
                self._engine.post(Submit(spec))
        else:
            self.accept(link, message)

    def link_lost(self, link: GatewayLink) -> None:
        for key in self._open.keys_of(link):
            self._cancel(key, None)

    def state(self) -> WorkerState:
        return worker_state(self._engine.snapshot, self.draining, self.token_blocks)

    def leave(self) -> None:
        """Ask gateways to send nothing new. Messages that they sent before they read it are still accepted."""
        self.draining = True

    def drain(self) -> None:
        """Refuse all new requests."""
        self.draining = self._is_closed = True
        self._engine.post(Drain())

    @abstractmethod
    def accept(self, link: GatewayLink, message: Message) -> None:
        """Handle any message but a Cancel, a Flip or an Encode, as the role does."""

    def has_open(self, key: RequestKey) -> bool:
        """True when the request is open here, under the attempt that its gateway knows."""
        return self._open.link_of(key) is not None

    def _open_request(
        self, link: GatewayLink, message: Prefill | Reserve | Encode, *, hold: bool
    ) -> SequenceSpec | None:
        """Open the request, and return it for the engine; None after refusing it with a typed reason."""
        key = RequestKey(message.request, message.attempt)
        spec: SequenceSpec | Failed
        if self._open.link_of(key) is not None:
            spec = Failed(key, Reason.BAD_REQUEST, "request and attempt are already open here")
        elif self._is_closed:
            spec = Failed(key, Reason.DRAINING, "this worker is draining")
        elif isinstance(message, Encode):
            spec = encoding_spec(message, self._limits, self._clock())
        else:
            spec = sequence_spec(message, self._limits, self._clock(), hold=hold)
        if isinstance(spec, Failed):
            self._metrics.legs[spec.reason].inc()
            link.send(leg_failed(key, spec.reason, spec.detail))
            return None
        self._legs.received(key, self._clock(), self._is_open, len(self._open))
        trace_id = None if isinstance(message, Encode) else message.trace_id
        self._open.open(key, spec.choices, link, trace_id)
        self._metrics.prompt_tokens.inc(len(spec.tokens))
        return spec

    def _is_open(self, key: RequestKey) -> bool:
        """True when the request that the engine knows as `key` is open."""
        return self._open.link_of(self.gateway_key(key)) is not None

    def _cancel(self, key: RequestKey, choice: int | None) -> None:
        """Stop a request, or one choice of it. The engine passes the cancel on to the transfer (`on_cancel`)."""
        if choice is None:
            self._open.close(key)
        elif self._open.choice_ended(key, choice):
            choice = None
        self._engine.post(CancelWork(key, choice))

    # Transfer thread --------------------------------------------------------------------------------------------------

    def observe_handover(self, key: RequestKey, seconds: float) -> None:
        """Observe how long a hand-over took, of the request that the engine knows as `key`."""
        self._metrics.observe_handover(seconds, self._open.trace_of(self.gateway_key(key)))

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        # Gateways first: the transfer may end a request at once, and then the io thread forgets its gateway.
        self._loop.call_soon_threadsafe(self.deliver, snapshot, events)
        for event in events:
            self.on_event(event)

    @abstractmethod
    def on_event(self, event: SchedulerEvent) -> None:
        """Pass the event on to the transfer if it concerns the transfer."""

    @abstractmethod
    def on_cancel(self, key: RequestKey) -> None:
        """Notify the transfer that the whole request was cancelled."""

    # Io thread again --------------------------------------------------------------------------------------------------

    def deliver(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None:
        """Report events to the gateways of their requests; called by `on_events` in the io thread."""
        entries: defaultdict[GatewayLink, list[TokenEntry]] = defaultdict(list)
        now = self._clock()
        for event in events:
            if isinstance(event, Failed):
                self._report(self.gateway_key(event.key), event.reason, event.detail)
            elif isinstance(event, Drawn):
                key = self.gateway_key(event.key)
                if (link := self._open.link_of(key)) is not None:
                    self._metrics.drawn_tokens.inc(len(event.ids))
                    entries[link].append(token_entry(event, key, self._legs.report(event, now)))
                    self.on_sent(event)
            elif isinstance(event, PromptScored):
                key = self.gateway_key(event.key)
                if (link := self._open.link_of(key)) is not None:
                    self._send_scores(link, event, key)
            elif isinstance(event, PromptEncoded):
                if (link := self._open.close(event.key)) is not None:
                    self._metrics.legs[Reason.FINISHED].inc()
                    link.send(EncodedPrompt(event.key.request, event.key.attempt, event.values, event.device_s))
            else:
                self._legs.take(event, now)
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
        """Send the tokens. If the gateway would refuse some request's tokens, end that request and send the rest."""
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
        """End a request whose tokens cannot be sent: another worker may do better."""
        self._complaints.say("tokens are not sent to their gateway", str(refusal))
        self._metrics.legs[Reason.INTERNAL].inc()
        if self._open.owns(key, link):
            self._cancel(key, None)
        link.send(leg_failed(key, Reason.INTERNAL, str(refusal)))

    def gateway_key(self, key: RequestKey) -> RequestKey:
        """The attempt under which the gateway knows what the engine knows as `key`."""
        return key

    def on_sent(self, event: Drawn) -> None:
        """Called when these tokens were sent to the request's gateway."""
        return

    def _report(self, key: RequestKey, reason: Reason, detail: str, has_kv: bool = False) -> None:
        """Report to the gateway that its leg failed. `has_kv`: this worker still holds the KV computed for it."""
        self._metrics.legs[reason].inc()
        link = self._open.link_of(key) if has_kv else self._open.close(key)
        if link is not None:
            link.send(leg_failed(key, reason, detail, has_kv))


def leg_failed(key: RequestKey, reason: Reason, detail: str, has_kv: bool = False) -> LegFailed:
    text = detail[:MAX_DETAIL].encode(errors="replace").decode()  # half a character could not be sent
    return LegFailed(key.request, key.attempt, reason, text, has_kv)
