"""The prefill worker's messenger: prompts go to the engine, and their KV from the engine to the transfer.

Cancels go through the transfer: it alone knows when no write reads the sequence's blocks any more, and then releases
them. The transfer knows nothing of an answer that is kept (decoded here too): the engine alone ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from baton_engine.scheduling.events import Computed, Computing, Drawn, Failed, Prefilled, SchedulerEvent
from baton_wire.messages.gateway_link import Prefill, Reserve, Retarget
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Message, PeerRef, Reason, RequestKey
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.serving.engine_thread import CancelWork, GrantedRoom, ReleaseBlocks, Submit
from baton_worker.serving.gateway_links import GatewayLink
from baton_worker.serving.messenger import MAX_DETAIL, Messenger, leg_failed

RECENT_STEPS = 4
"""Steps whose prompts are remembered. At most two are launched at once, but notices of an older one may come late."""


class OutgoingHandovers(Protocol):
    """The prefill side of the hand-overs; every method is safe from any thread."""

    def opened(self, key: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None: ...

    def retargeted(self, key: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None: ...

    def computed(self, key: RequestKey, tokens: int, blocks: tuple[int, ...]) -> None: ...

    def computing(self, key: RequestKey, tokens: int, layers: int, blocks: tuple[int, ...], rank: int) -> None: ...

    def first_tokens(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None: ...

    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...


class PrefillService(Messenger):
    """The messenger of a prefill worker.

    Besides the threads of `Messenger`: `on_layers` (engine thread, or the thread that watches a GPU), and
    `on_granted`, `on_release` and `on_report` (transfer thread).
    """

    ranks = 1
    """Ranks that compute each prompt; all have written the layers that are reported."""
    transfer: OutgoingHandovers
    """Filled by `__main__`: it calls back into the messenger, which therefore has to exist first."""

    def __init__(
        self,
        limits: RequestLimits,
        metrics: WorkerMetrics,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(limits, metrics, loop, clock)
        self._opened_as: dict[RequestKey, RequestKey] = {}
        """For requests that were sent to another decode worker: the present attempt → the attempt the engine knows."""
        self._current: dict[RequestKey, RequestKey] = {}
        """For the same requests: the attempt the engine knows → the present attempt."""
        self._held: set[RequestKey] = set()
        """Prompts of hand-overs under the engine's keys; changed by the io thread only."""
        self._kept: set[RequestKey] = set()
        """Open requests whose answers are decoded here; io thread."""
        self._computing: dict[int, list[Computing]] = {}
        """Prompts of the latest steps, by step: written by the engine thread, read by the one that reports layers."""

    def accept(self, link: GatewayLink, message: Message) -> None:
        match message:
            case Prefill():
                self._prefill(link, message)
            case Retarget():
                self._retarget(link, message)
            case Reserve(prefill_epoch=None) if self._limits.keeps_answers:
                self._keep(link, message)
            case Reserve(request, attempt):
                key, detail = RequestKey(request, attempt), "this prefill worker takes no such reservations"
                link.send(leg_failed(key, Reason.BAD_REQUEST, detail))

    def _prefill(self, link: GatewayLink, message: Prefill) -> None:
        spec = self._open_request(link, message, hold=True)
        if spec is not None:
            self._held.add(spec.key)
            self._engine.post(Submit(spec))  # before `opened`: its release must not overtake the submit
            self.transfer.opened(
                RequestKey(message.request, message.attempt), message.decode, len(spec.tokens), spec.deadline_s
            )

    def _keep(self, link: GatewayLink, message: Reserve) -> None:
        spec = self._open_request(link, message, hold=False)
        if spec is not None:
            self._kept.add(spec.key)
            self._engine.post(Submit(spec))

    def _retarget(self, link: GatewayLink, message: Retarget) -> None:
        old, new = (RequestKey(message.request, number) for number in (message.attempt, message.next_attempt))
        if not self._open.owns(old, link) or old in self._kept:
            link.send(leg_failed(new, Reason.UNKNOWN_REQUEST, "nothing is held for this attempt"))
            return
        self._open.rename(old, new)
        opened = self._opened_as.pop(old, old)
        self._opened_as[new], self._current[opened] = opened, new
        deadline_s = self._clock() + message.timeout_s
        self.transfer.retargeted(opened, new.attempt, message.decode, deadline_s)

    def _cancel(self, key: RequestKey, choice: int | None) -> None:
        """Stop a request. A prompt that is handed over is held for all choices, so cancelling one cancels it."""
        if key in self._kept:
            super()._cancel(key, choice)
            self._forget_kept(key)
            return
        self._open.close(key)
        self._engine.post(CancelWork(self._opened_as.get(key, key)))

    def _report(self, key: RequestKey, reason: Reason, detail: str, has_kv: bool = False) -> None:
        super()._report(key, reason, detail, has_kv)
        self._forget_kept(key)

    def _forget_kept(self, key: RequestKey) -> None:
        if self._open.link_of(key) is None:
            self._kept.discard(key)

    def on_sent(self, event: Drawn) -> None:
        if event.finish is not None and event.key in self._kept and self._open.choice_ended(event.key, event.choice):
            self._kept.discard(event.key)
            self._metrics.legs[Reason.FINISHED].inc()

    def holds(self, key: RequestKey) -> bool:
        """True when the engine has a prompt of a hand-over under this key. Safe from any thread."""
        return key in self._held

    def gateway_key(self, key: RequestKey) -> RequestKey:
        return self._current.get(key, key)

    # Engine thread ----------------------------------------------------------------------------------------------------

    def on_event(self, event: SchedulerEvent) -> None:
        match event:
            case Computing():
                self._start(event)
            case Computed(key, tokens, blocks):
                self.transfer.computed(key, tokens, blocks)
            case Prefilled(key, first_tokens):
                self.transfer.first_tokens(key, first_tokens)
            case Failed(key, reason, detail):
                self.transfer.cancelled(key, reason, detail[:MAX_DETAIL])

    def _start(self, prompt: Computing) -> None:
        self._computing.setdefault(prompt.step, []).append(prompt)
        for step in [step for step in self._computing if step < prompt.step - RECENT_STEPS]:
            del self._computing[step]

    def on_layers(self, step: int, layers: int) -> None:
        """KV of layers [0, layers) of the step's prompts is complete. On a GPU, and with several ranks, the thread that
        watches them calls."""
        for prompt in self._computing.get(step, ()):
            for rank in range(self.ranks):
                self.transfer.computing(prompt.key, prompt.tokens, layers, prompt.blocks, rank)

    def on_cancel(self, key: RequestKey) -> None:
        self.transfer.cancelled(key)

    # Transfer thread --------------------------------------------------------------------------------------------------

    def on_granted(self, key: RequestKey) -> None:
        self._engine.post(GrantedRoom(key))

    def on_release(self, key: RequestKey) -> None:
        self._engine.post(ReleaseBlocks(key))
        self._loop.call_soon_threadsafe(self._released, key)

    def on_report(self, key: RequestKey, reason: Reason, detail: str, failed_attempt: int, kept: bool) -> None:
        self._loop.call_soon_threadsafe(self._report, RequestKey(key.request, failed_attempt), reason, detail, kept)

    # Io thread again --------------------------------------------------------------------------------------------------

    def _released(self, opened: RequestKey) -> None:
        self._held.discard(opened)
        key = self._current.pop(opened, opened)
        self._opened_as.pop(key, None)
        self._open.close(key)
