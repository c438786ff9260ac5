"""Faulty variants of scheduler, services, gateway and liveness: defects of the field put back, named after threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from baton_decode_worker.service import DecodeService
from baton_engine.memory.blocks import BlockOwner, BlockPool
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Computed, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_plan import OpenSlot, StepPlan
from baton_gateway.errors import Problem
from baton_gateway.reporting.outcome import Outcome
from baton_gateway.requests.admission import Admission
from baton_gateway.requests.request import RequestLife
from baton_gateway.requests.request_events import (
    Action,
    Arrived,
    Deliver,
    End,
    Event,
    Send,
    WorkerLost,
)
from baton_gateway.requests.routing import Routing
from baton_gateway.requests.token_validation import read_logprobs
from baton_gateway.workers.route import Route, RoutePolicy, RouteQuery, pick
from baton_prefill_worker.service import PrefillService
from baton_testing.engine.runners import ToyRunner
from baton_wire.liveness import Liveness, PeerState
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Reason, RequestKey, SamplingParams
from baton_worker.serving.gateway_links import GatewayLink

# Runner ---------------------------------------------------------------------------------------------------------------


class BeginsGrammarsAnew(ToyRunner):
    """vllm#18783 and others: after a preemption or a move a row's grammar restarts after its earlier tokens."""

    def _open(self, opened: OpenSlot) -> None:
        super()._open(opened)
        if self.masks is not None:
            self.masks.open(replace(opened, outputs=()))


class LeavesGrammarsOut(ToyRunner):
    """A draw that follows no grammar: of a path that got no masks."""

    def _open(self, opened: OpenSlot) -> None:
        self.masks = None
        super()._open(opened)


# Scheduler ------------------------------------------------------------------------------------------------------------


class _UnfencedPool(BlockPool):
    def release(self, owner: BlockOwner, fence: int) -> None:
        super().release(owner, 0)


class UsesAfterFinish(Scheduler):
    """Use-after-finish of one-step-ahead: a finished sequence's blocks are given out under the launched step."""

    def __init__(self, config: EngineConfig, is_ready: Callable[[SamplingParams], bool]) -> None:
        super().__init__(config, is_ready)
        self.pool = self._state.pool = _UnfencedPool(config.num_blocks)


class _SharedRootScheduler(Scheduler):
    def submit(self, spec: SequenceSpec, now: float) -> None:
        super().submit(replace(spec, salt=""), now)

    def reserve(self, spec: SequenceSpec, now: float) -> None:
        super().reserve(replace(spec, salt=""), now)


class SharesPrefixesOfTenants(_SharedRootScheduler):
    """vllm#52234 as a leak between tenants: the prefix cache does not know whose KV it is."""


class CancelsFreeReservations(Scheduler):
    """vllm#56104: a cancel frees blocks that the transfer is still writing to."""

    def cancel(self, key: RequestKey, choice: int | None, now: float) -> None:
        if choice is None:
            self.release(key, now)
        else:
            super().cancel(key, choice, now)


class LosesSamplerState(Scheduler):
    """dynamo#7634: what was generated before a hand-over or a migration is not known to penalties and noise."""

    def plan(self, now: float) -> StepPlan | None:
        plan = super().plan(now)
        return plan and replace(plan, opens=tuple(replace(opened, outputs=()) for opened in plan.opens))


class GivesChoicesTheSameNoise(Scheduler):
    """fak#5278: n > 1 after a hand-over draws every choice with the first one's state."""

    def plan(self, now: float) -> StepPlan | None:
        plan = super().plan(now)
        return plan and replace(plan, opens=tuple(replace(opened, choice=0) for opened in plan.opens))


class ForgetsCopies(Scheduler):
    """vllm#49250: forked choices go on without a copy of the block that they share."""

    def plan(self, now: float) -> StepPlan | None:
        plan = super().plan(now)
        return plan and replace(plan, copies=())


class SleepsThroughLanding(Scheduler):
    """local-inference-lab/vllm#191: landed KV does not wake the engine."""

    def landed(self, key: RequestKey, first_tokens: tuple[FirstToken, ...], now: float) -> None:
        return


class NeverReleases(Scheduler):
    """vllm#46283: what a transfer held is never given back."""

    def release(self, key: RequestKey, now: float) -> None:
        return


class EvictsUnderReaders(Scheduler):
    """TensorRT-LLM#12542: source blocks are evicted before the send begins."""

    def apply(self, result: Any, now: float) -> None:
        super().apply(result, now)
        for event in self._state.events:
            if isinstance(event, Computed) and event.key.request[-2] % 2:
                self.release(event.key, now)


class AnnouncesTooMuch(Scheduler):
    """vllm#53095: KV is announced as computed one block ahead of the computed ones."""

    def events(self) -> list[Any]:
        done = super().events()
        return [self._ahead(event) if isinstance(event, Computed) else event for event in done]

    def _ahead(self, event: Computed) -> Computed:
        request = self._state.requests.get(event.key)
        whole = event.tokens if request is None else len(request.spec.tokens)
        size = self.config.block_tokens
        return replace(event, tokens=min(whole, (event.tokens // size + 1) * size, len(event.blocks) * size))


# Services -------------------------------------------------------------------------------------------------------------


class FreesBeforeTheTransfer(PrefillService):
    """vllm#55470: the engine frees on cancel without asking the transfer."""

    def _cancel(self, key: RequestKey, choice: int | None) -> None:
        super()._cancel(key, choice)
        self.on_release(key)


class ForgetsTheDeadGatewayAtPrefill(PrefillService):
    """llm-d operations guide: the router dies and its requests keep their blocks."""

    def link_lost(self, link: GatewayLink) -> None:
        return


class ForgetsTheDeadGatewayAtDecode(DecodeService):
    """vllm#43226, llm-d#187: clients are gone and the engine is not notified."""

    def link_lost(self, link: GatewayLink) -> None:
        return


class LeaksFailedReservations(DecodeService):
    """vllm#46283: a failed hand-over leaves the reservation for the life of the process."""

    def on_failed(self, key: RequestKey, reason: Reason, detail: str) -> None:
        self._loop.call_soon_threadsafe(self._handover_failed, key, reason, detail)


class LeaksReleases(PrefillService):
    """vllm#41269: the transfer's release does not reach the engine."""

    def on_release(self, key: RequestKey) -> None:
        self._loop.call_soon_threadsafe(self._open.close, key)


class CancelsEveryChoice(DecodeService):
    """fak#5278: with n > 1, what ends one choice ends the others."""

    def _cancel(self, key: RequestKey, choice: int | None) -> None:
        super()._cancel(key, None)


# Gateway --------------------------------------------------------------------------------------------------------------


class DeliversTwice(RequestLife):
    """dynamo#7930: token 1 comes from both workers and reaches the client twice."""

    def handle(self, event: Event, now: float) -> list[Action]:
        return self._again(event) if isinstance(event, Arrived) else super().handle(event, now)

    def _again(self, event: Arrived) -> list[Action]:
        run = self._runs.get(event.entry.request)
        if run is None or event.entry.attempt != run.attempt:
            return []
        number = run.prompt * self._n + event.entry.choice
        if number not in run.choices:
            return []
        return self._deliver(run, number, event.entry.ids, read_logprobs(event.entry), event.entry.finish)


class EndsTwice(RequestLife):
    """vercel/ai#19165: a stream has two ends."""

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        ends = [action for action in actions if isinstance(action, End)]
        return [*actions, *ends]


class IgnoresTheDeadline(RequestLife):
    """vllm#26171: nothing ends a request that waits."""

    @property
    def wake_at(self) -> float:
        return 1e6


class IgnoresLostWorkers(RequestLife):
    """aibrix#2289: a worker is gone and its requests wait for minutes."""

    def handle(self, event: Event, now: float) -> list[Action]:
        return [] if isinstance(event, WorkerLost) else super().handle(event, now)


class LeavesTheSiblingLeg(RequestLife):
    """sglang#29482: one leg fails and the other is joined for half an hour."""

    def _fail(
        self, run: Any, worker: bytes, reason: Reason, now: float, is_gone: bool = False, is_retained: bool = False
    ) -> list[Action]:
        actions = super()._fail(run, worker, reason, now, is_gone, is_retained)
        return [a for a in actions if not (isinstance(a, Send) and isinstance(a.message, Cancel))]


class CountsForcedTokensAsPrompt(RequestLife):
    """dynamo#7930: a migrated request counts its delivered tokens as prompt and begins to count anew."""

    def _start_legs(self, run: Any, route: Route, now: float) -> list[Action]:
        return [self._as_prompt(action) for action in super()._start_legs(run, route, now)]

    def _as_prompt(self, action: Action) -> Action:
        if isinstance(action, Send) and isinstance(action.message, Prefill | Reserve):
            message = action.message
            values = {name: getattr(message, name) for name in message.__struct_fields__}
            return msgspec.structs.replace(
                action, message=type(message)(**{**values, "prompt_tokens": len(message.tokens) // 4})
            )
        return action


class LeavesWorkersAlone(RequestLife):
    """llm-d#187, LMCache#3688: the client is gone and the workers go on."""

    def _end(self, outcome: Outcome, problem: Problem | None = None) -> list[Action]:
        return [action for action in super()._end(outcome, problem) if not isinstance(action, Send)]


class LosesFinishReasons(RequestLife):
    """vllm#19662, sglang#3912: streams end without a finish reason."""

    def handle(self, event: Event, now: float) -> list[Action]:
        actions = super().handle(event, now)
        return [msgspec.structs.replace(a, finish=None) if isinstance(a, Deliver) else a for a in actions]


class CallsFailuresFinished(RequestLife):
    """koboldcpp#2481: an error is sent as 200 with a finish."""

    def _end(self, outcome: Outcome, problem: Problem | None = None) -> list[Action]:
        return super()._end(Outcome.FINISHED if outcome is Outcome.FAILED else outcome, None)


class DropsTheSplitChoices(RequestLife):
    """fak#5278: after a migration only the first of n choices goes on."""

    def _split(self, run: Any) -> list[Any]:
        return super()._split(run)[:1]


class FreesTheNextAttempt(RequestLife):
    """dynamo#11647: cleanup of attempt A ends attempt B."""

    def _cancel_legs(self, run: Any) -> list[Send]:
        cancels = super()._cancel_legs(run)
        return [Send(cancel.worker, Cancel(run.request, run.attempt + 1)) for cancel in cancels]


class PairsAnyRevision(Routing):
    """vllm#55776, kvcached#391: the model's revision is not compared."""

    def _pick(self, query: RouteQuery, policy: RoutePolicy) -> Route | Problem:
        views = [msgspec.structs.replace(view, fingerprint=query.fingerprint) for view in self._table.views()]
        return pick(query, views, policy)


class PrefillsOnDecode(Routing):
    """llm-d-router#2427: no prefill worker is linked and decode prefills silently."""

    def _pick(self, query: RouteQuery, policy: RoutePolicy) -> Route | Problem:
        return super()._pick(query, replace(policy, decode_locally=True))


class RemembersPairs(Routing):
    """dynamo#8965: the router keeps a pairing after its workers are gone."""

    _known: Route | None = None

    def _pick(self, query: RouteQuery, policy: RoutePolicy) -> Route | Problem:
        route = self._known or super()._pick(query, policy)
        if isinstance(route, Route):
            self._known = route
        return route


class KeepsTickets(Admission):
    """dynamo#11647: what a request was counted under is never given back."""

    def leave(self, ticket: int) -> list[int]:
        return []


class SwallowsSilence(Liveness):
    """wtdcode/vllm-backport#33: failed heartbeats are swallowed and the link is kept."""

    def state(self, now: float) -> PeerState:
        return PeerState.LIVE
