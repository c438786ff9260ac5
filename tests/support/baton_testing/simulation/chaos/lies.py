"""Workers with a valid key that lie: absurd states, tokens of others' requests, more tokens than were asked for, ids
that no request has, fields out of range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

from baton_engine.scheduling.step_load import StepLoad
from baton_gateway.requests.live_request import LiveRequest
from baton_gateway.requests.run import Run, RunState
from baton_testing.simulation.chaos.gateway import ChaosClient, ChaosGateway
from baton_testing.simulation.chaos.plan import ChaosFault
from baton_testing.simulation.engine import STEP_S
from baton_testing.simulation.network import End
from baton_testing.simulation.scenario import FaultPlan
from baton_testing.simulation.worker import SimWorker
from baton_wire.messages.gateway_link import (
    MAX_CHANGED_PLACES,
    MAX_STATE_TIMINGS,
    CachedPlaces,
    LegFailed,
    PromptLogprobs,
    Tokens,
    WorkerState,
)
from baton_wire.messages.measures import StepTiming
from baton_wire.messages.values import Finish, PromptLogprob, Reason, TokenEntry

LIES_S = 2.0
"""The longest time for which an absurd state is reported."""
MOST = 1 << 40
_FAST = StepTiming(step=1, prefill_tokens=MOST, prefill_pairs=1e18, decode_rows=0, kv_tokens=MOST, seconds=0.0)
_SLOW = StepTiming(step=MOST, prefill_tokens=1, prefill_pairs=0.0, decode_rows=MOST, kv_tokens=0, seconds=1e7)
STATES: tuple[dict[str, Any], ...] = (
    {"blocks_free": MOST, "blocks_cached": MOST, "running": 0, "waiting": 0, "waiting_tokens": 0, "step_s": 0.0},
    {"blocks_free": 0, "running": MOST, "waiting": MOST, "waiting_tokens": MOST, "step_s": 1e7},
    {"computing_tokens": MOST, "steps": MOST, "gateways": MOST, "timings": (_FAST,)},
    {"steps": 0, "waiting": 1, "running": 1, "step_s": 1e7, "timings": (_SLOW,) * MAX_STATE_TIMINGS},
    {"timings": (_FAST, _SLOW), "waiting_tokens": MOST, "step_s": 1e-300},
)
BAD: tuple[dict[str, Any], ...] = (
    {"waiting": -1},
    {"blocks_free": 1 << 63},
    {"step_s": float("nan")},
    {"flip": 1 << 41},
)

_encode = msgspec.msgpack.Encoder().encode
"""Encodes without validation: a liar does not check whether a message is possible."""


class ReportedStates:
    """The reports of one worker: its state with the steps that it took, and lies while a fault wants them."""

    def __init__(self, worker: SimWorker) -> None:
        self._state, self._tell_all = worker.service.state, worker._tell_all
        self._step_tokens = worker.world.shape.step_tokens
        self._timings: deque[StepTiming] = deque(maxlen=MAX_STATE_TIMINGS)
        worker.service.state = self._report  # type: ignore[method-assign]
        worker._tell_all = self._tell  # type: ignore[method-assign]
        cast(Any, worker).engine.thread._stepper._observe = self._stepped

    def _stepped(self, step: int, load: StepLoad, seconds: float) -> None:
        """A full turn of the simulated engine takes `STEP_S`, whatever its runner says."""
        tokens, rows, read = load.prefill_tokens, load.decode_rows, load.kv_tokens
        took_s = STEP_S if rows else STEP_S * tokens / self._step_tokens
        self._timings.append(StepTiming(step, tokens, load.prefill_pairs, rows, read, took_s))

    def _report(self) -> WorkerState:
        state = self._state()
        step_s = STEP_S if state.steps else 0.0
        return msgspec.structs.replace(state, step_s=step_s, timings=tuple(self._timings))

    def _tell(self) -> None:
        self._tell_all()
        self._timings.clear()


def lie(worker: SimWorker, states: ReportedStates, fault: FaultPlan) -> bool:
    """Send a lie; False: there was no occasion."""
    links = [link for link in worker._links.values() if isinstance(link.end.other.process, ChaosGateway)]
    if not links:
        return False
    end = links[int(fault.amount * len(links))].end
    gateway = cast(ChaosGateway, end.other.process)
    match fault.kind:
        case ChaosFault.LYING_STATE:
            fields = STATES[int(fault.amount * len(STATES))]
            _lie_of_state(worker, fields, LIES_S * fault.amount)
            return True
        case ChaosFault.BAD_FIELDS:
            bad = BAD[int(fault.amount * len(BAD))]
            return end.send(_encode(msgspec.structs.replace(worker.service.state(), **bad)))
        case ChaosFault.FOREIGN_TOKENS:
            return _lie_of_others(worker, end, gateway)
    return _lie_of_its_own(worker, end, gateway, fault)


def _lie_of_state(worker: SimWorker, fields: dict[str, Any], left_s: float) -> None:
    for link in worker._links.values():
        link.end.send(_encode(msgspec.structs.replace(worker.service.state(), **fields)))
        link.end.send(_encode(_absurd_places(worker)))
    if left_s > 0:
        worker.later(0.05, lambda: _lie_of_state(worker, fields, left_s - 0.05))


def _absurd_places(worker: SimWorker) -> CachedPlaces:
    """Places of no prompt, as many as a message holds, and a generation that runs back or ahead."""
    dice = worker.world.heap.random
    names = dice.randbytes(8 * dice.choice((1, 100, MAX_CHANGED_PLACES)) + dice.choice((0, 0, 3)))
    return CachedPlaces(dice.choice((0, 1, 2, 50, MOST)), names, names[:16], is_first=dice.random() < 0.3)


def _lie_of_others(worker: SimWorker, end: End, gateway: ChaosGateway) -> bool:
    """Tokens, ends and failures of runs that are another worker's, or of no worker."""
    others = _runs(gateway, lambda run: worker.epoch not in (run.prefill, run.decode))
    for live, run in others[:4]:
        choice = min(run.choices)
        known, place = len(live.life._choices[choice].ids), choice % live.request.options.n
        for attempt in {run.attempt, max(1, run.attempt - 1)}:  # the next one may be its own
            entry = TokenEntry(run.request, attempt, place, known, (7,), finish=Finish.STOP)
            end.send(_encode(Tokens(step=1, entries=(entry,))))
            end.send(_encode(LegFailed(run.request, attempt, Reason.BAD_REQUEST, "a lie")))
            scores = PromptLogprobs(run.request, attempt, 1, (PromptLogprob(logprob=-1.0, rank=1, top=()),))
            end.send(_encode(scores))
    entry = TokenEntry(bytes(16), 1, 127, 1 << 20, (7,) * 64, finish=Finish.LENGTH)
    return end.send(_encode(Tokens(step=1, entries=(entry,) * 64))) and bool(others)


def _lie_of_its_own(worker: SimWorker, end: End, gateway: ChaosGateway, fault: FaultPlan) -> bool:
    own = _runs(gateway, lambda run: worker.epoch in (run.prefill, run.decode))
    if not own:
        return False
    live, run = own[int(fault.pick * len(own))]
    cast(ChaosClient, live.writer).is_lied_to = True
    choice = min(run.choices)
    known = live.life._choices[choice].ids
    ids: tuple[int, ...]
    match fault.kind:
        case ChaosFault.EXCESS_TOKENS:
            ids, cached = (7,) * 64, None
        case ChaosFault.UNKNOWN_IDS:
            ids, cached = ((1 << 24) - 1, 50, 51), None
        case _:
            ids, cached = (7,), 1 << 20
    entry = TokenEntry(run.request, run.attempt, choice % live.request.options.n, len(known), ids, cached_tokens=cached)
    return end.send(_encode(Tokens(step=1, entries=(entry,))))


def _runs(gateway: ChaosGateway, is_meant: Callable[[Run], bool]) -> list[tuple[LiveRequest, Run]]:
    runs = ((live, run) for live in gateway.relay._by_ticket.values() for run in live.life._runs.values())
    return [(live, run) for live, run in runs if run.state is RunState.RUNNING and is_meant(run)]
