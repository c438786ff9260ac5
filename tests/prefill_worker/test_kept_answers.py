"""Answers that a prefill worker keeps: opened, cancelled and ended without the transfer."""

from __future__ import annotations

import asyncio

import pytest

from baton_engine.scheduling.events import Drawn, Failed
from baton_prefill_worker.service import PrefillService
from baton_testing.processes.quiet_ends import QuietEngine, RecordingLink
from baton_wire.messages.gateway_link import Cancel, LegFailed, Reserve, Retarget, Tokens
from baton_wire.messages.values import Address, Finish, PeerRef, Reason, RequestKey, Role, SamplingParams, pack_ids
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.serving.engine_thread import CancelWork, Command, Submit

REQUEST = bytes(range(16))
KEY = RequestKey(REQUEST, 1)


class Engine(QuietEngine):
    def __init__(self) -> None:
        self.received: list[Command] = []

    def post(self, command: Command) -> None:
        self.received.append(command)


class Side:
    """A service that keeps answers, or one that does not."""

    def __init__(self, *, keeps_answers: bool = True) -> None:
        limits = RequestLimits(100, 32, 2, keeps_answers=keeps_answers)
        self.service = PrefillService(limits, WorkerMetrics(Role.PREFILL), asyncio.get_running_loop())
        self.engine, self.link = Engine(), RecordingLink()
        self.service.attach(self.engine)

    def reserve(self, prefill_epoch: bytes | None = None) -> None:
        sampling = SamplingParams(max_tokens=3, temperature=0)
        message = Reserve(REQUEST, 1, pack_ids([5]), 1, (0, 1), sampling, 30.0, "", prefill_epoch, None, 0.01)
        self.service.handle(self.link, message)

    async def draw(self, choice: int, finish: Finish | None) -> None:
        self.service.on_events(QuietEngine.snapshot, [Drawn(KEY, choice, 0, (7,), None, finish)])
        await asyncio.sleep(0)

    def refusals(self) -> list[Reason]:
        return [frame.reason for frame in self.link.received if isinstance(frame, LegFailed)]


async def test_a_kept_answer_is_decoded_here_to_the_end_of_its_last_choice() -> None:
    side = Side()
    side.reserve()
    (submitted,) = side.engine.received
    assert isinstance(submitted, Submit)
    assert not submitted.spec.hold
    assert submitted.spec.tpot_s == 0.01
    await side.draw(0, Finish.LENGTH)
    assert side.service.open_requests == 1
    await side.draw(1, Finish.LENGTH)
    assert side.service.open_requests == 0
    assert sum(isinstance(frame, Tokens) for frame in side.link.received) == 2
    side.reserve()
    assert side.refusals() == [], "nothing is left of it"


async def test_a_choice_of_a_kept_answer_is_cancelled_alone() -> None:
    side = Side()
    side.reserve()
    side.service.handle(side.link, Cancel(REQUEST, 1, 0))
    assert side.engine.received[-1] == CancelWork(KEY, 0)
    assert side.service.open_requests == 1
    side.service.handle(side.link, Cancel(REQUEST, 1, 1))
    assert side.engine.received[-1] == CancelWork(KEY, None)
    assert side.service.open_requests == 0


async def test_a_kept_answer_that_the_engine_gives_up_ends_with_its_reason() -> None:
    side = Side()
    side.reserve()
    side.service.transfer = Deaf()
    side.service.on_events(QuietEngine.snapshot, [Failed(KEY, Reason.NO_CAPACITY, "")])
    await asyncio.sleep(0)
    assert side.refusals() == [Reason.NO_CAPACITY]
    assert side.service.open_requests == 0


@pytest.mark.parametrize(("keeps_answers", "prefill_epoch"), [(False, None), (True, b"p" * 16)])
async def test_other_reservations_are_refused(keeps_answers: bool, prefill_epoch: bytes | None) -> None:
    side = Side(keeps_answers=keeps_answers)
    side.reserve(prefill_epoch)
    assert side.refusals() == [Reason.BAD_REQUEST]
    assert side.engine.received == []


async def test_a_kept_answer_is_sent_nowhere_else() -> None:
    side = Side()
    side.reserve()
    side.service.handle(side.link, Retarget(REQUEST, 1, 2, 30.0, PeerRef(Address("127.0.0.1", 1), bytes(16))))
    assert side.refusals() == [Reason.UNKNOWN_REQUEST]
    assert side.service.open_requests == 1


class Deaf:
    """A transfer that has nothing of what is kept."""

    def opened(self, key: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None: ...

    def retargeted(self, key: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None: ...

    def computed(self, key: RequestKey, tokens: int, blocks: tuple[int, ...]) -> None: ...

    def computing(self, key: RequestKey, tokens: int, layers: int, blocks: tuple[int, ...], rank: int) -> None: ...

    def first_tokens(self, key: RequestKey, first_tokens: tuple[object, ...]) -> None: ...

    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...
