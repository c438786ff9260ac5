"""The flexible worker's messenger: each request on its side, whatever the role; flips go by their numbers."""

from __future__ import annotations

import asyncio
import logging

import pytest

from baton_decode_worker.service import DecodeService
from baton_engine.scheduling.events import Computed, Drawn, Failed, Prefilled, Reserved, SchedulerEvent
from baton_flexible_worker.service import FlexibleService
from baton_prefill_worker.service import PrefillService
from baton_testing.processes.quiet_ends import QuietEngine, RecordingLink
from baton_wire.messages.gateway_link import Cancel, Flip, LegFailed, Prefill, Reserve, Retarget, Tokens
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import (
    POOL_ROLES,
    Address,
    Finish,
    PeerRef,
    Reason,
    RequestKey,
    Role,
    SamplingParams,
    pack_ids,
)
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.serving.engine_thread import (
    CancelWork,
    Command,
    Drain,
    HandoverLanded,
    ReleaseBlocks,
    ReserveBlocks,
    Submit,
)

PEER = PeerRef(Address("127.0.0.1", 1), b"e" * 16)
SAMPLING = SamplingParams(max_tokens=3, temperature=0)


class Engine(QuietEngine):
    def __init__(self) -> None:
        self.received: list[Command] = []

    def post(self, command: Command) -> None:
        self.received.append(command)


class TransferRecord:
    """Either side's transfer: records its calls by name."""

    def __init__(self) -> None:
        self.received: list[tuple[str, RequestKey]] = []

    def __getattr__(self, name: str) -> object:
        return lambda key, *facts: self.received.append((name, key))


class Desk:
    def __init__(self, role: Role = Role.PREFILL) -> None:
        limits = RequestLimits(100, 32, 2, keeps_answers=True)
        self.service = FlexibleService(role, limits, WorkerMetrics(role), asyncio.get_running_loop())
        self.engine, self.link, self.puts, self.lands = Engine(), RecordingLink(), TransferRecord(), TransferRecord()
        self.service.attach(self.engine)
        self.service.prefill.transfer = self.puts  # type: ignore[assignment]
        self.service.decode.transfer = self.lands  # type: ignore[assignment]

    def prefill(self, request: int = 1) -> RequestKey:
        key = key_of(request)
        message = Prefill(key.request, 1, pack_ids([5]), 1, (0,), SAMPLING, 30.0, "", PEER)
        self.service.handle(self.link, message)
        return key

    def reserve(self, request: int = 2, prefill_epoch: bytes | None = PEER.epoch) -> RequestKey:
        key = key_of(request)
        message = Reserve(key.request, 1, pack_ids([5]), 1, (0,), SAMPLING, 30.0, "", prefill_epoch)
        self.service.handle(self.link, message)
        return key

    async def hear(self, *events: SchedulerEvent) -> None:
        self.service.on_events(QuietEngine.snapshot, list(events))
        await asyncio.sleep(0)

    def failures(self) -> list[tuple[int, Reason]]:
        return [
            (message.request[-1], message.reason) for message in self.link.received if isinstance(message, LegFailed)
        ]


def key_of(request: int) -> RequestKey:
    return RequestKey(bytes(15) + bytes([request]), 1)


@pytest.mark.parametrize("role", POOL_ROLES)
async def test_all_kinds_of_work_are_taken_in_either_role(role: Role) -> None:
    desk = Desk(role)
    handed, reserved, whole = desk.prefill(1), desk.reserve(2), desk.reserve(3, None)
    kinds = [
        (type(command), command.spec.key, command.spec.hold)
        for command in desk.engine.received
        if hasattr(command, "spec")
    ]
    assert kinds == [(Submit, handed, True), (ReserveBlocks, reserved, False), (Submit, whole, False)]
    assert desk.service.open_requests == 3
    assert desk.failures() == []


async def test_each_side_hears_of_its_own_requests_alone() -> None:
    desk = Desk()
    handed, reserved = desk.prefill(1), desk.reserve(2)
    firsts = (FirstToken(0, 7),)
    await desk.hear(
        Computed(handed, 1, (3,)),
        Reserved(reserved, 0, (4,)),
        Drawn(handed, 0, 0, (7,), None, None),
        Prefilled(handed, firsts),
    )
    assert desk.puts.received == [("opened", handed), ("computed", handed), ("first_tokens", handed)]
    assert desk.lands.received == [("expected", reserved)]
    desk.service.on_cancel(reserved)
    desk.service.on_cancel(handed)
    assert desk.puts.received[-1] == ("cancelled", handed)
    assert desk.lands.received[-1] == ("cancelled", reserved)
    (tokens,) = (message for message in desk.link.received if isinstance(message, Tokens))
    assert [entry.request for entry in tokens.entries] == [handed.request]


async def test_a_failure_of_the_engine_is_told_once_by_the_side_that_has_the_request() -> None:
    desk = Desk()
    handed, reserved = desk.prefill(1), desk.reserve(2)
    await desk.hear(Failed(handed, Reason.DEADLINE, "late"), Failed(reserved, Reason.NO_CAPACITY, "full"))
    assert desk.failures() == [(1, Reason.DEADLINE), (2, Reason.NO_CAPACITY)]
    assert desk.puts.received[-1] == ("cancelled", handed)
    assert desk.lands.received == [("refused", reserved)]


async def test_answers_that_were_begun_go_on_behind_a_flip() -> None:
    desk = Desk(Role.DECODE)
    whole, reserved = desk.reserve(1, None), desk.reserve(2)
    desk.service.handle(desk.link, Flip(1, Role.PREFILL))
    handed = desk.prefill(3)
    desk.service.decode.on_landed(reserved, (FirstToken(0, 7),))
    await desk.hear(Drawn(whole, 0, 0, (7,), None, Finish.LENGTH), Drawn(reserved, 0, 1, (8,), None, Finish.LENGTH))
    assert desk.service.open_requests == 1
    desk.service.prefill.on_release(handed)
    await asyncio.sleep(0)
    assert desk.service.open_requests == 0
    assert desk.failures() == []


async def test_a_request_is_open_on_one_side_only() -> None:
    """The engine knows a request by its key: two of one key would be one."""
    desk = Desk()
    desk.prefill(1)
    desk.reserve(1)
    assert desk.failures() == [(1, Reason.BAD_REQUEST)]
    desk.reserve(2)
    desk.prefill(2)
    assert desk.failures() == [(1, Reason.BAD_REQUEST), (2, Reason.BAD_REQUEST)]
    assert desk.service.open_requests == 2


async def test_a_lost_gateway_ends_the_requests_of_both_sides() -> None:
    desk = Desk()
    keys = {desk.prefill(1), desk.reserve(2)}
    desk.service.link_lost(desk.link)
    assert {command.key for command in desk.engine.received if isinstance(command, CancelWork)} == keys
    assert desk.service.open_requests == 0


async def test_a_cancel_and_a_retarget_find_their_side() -> None:
    desk = Desk()
    handed, reserved = desk.prefill(1), desk.reserve(2)
    desk.service.handle(desk.link, Cancel(reserved.request, 1))
    desk.service.handle(desk.link, Retarget(handed.request, 1, 2, 30.0, PEER))
    assert desk.engine.received[-1] == CancelWork(reserved)
    assert desk.puts.received[-1] == ("retargeted", handed)
    desk.service.handle(desk.link, Retarget(reserved.request, 1, 2, 30.0, PEER))
    assert desk.failures() == [(2, Reason.UNKNOWN_REQUEST)]


@pytest.mark.parametrize(
    ("orders", "role", "flip"),
    [
        ([(1, Role.DECODE)], Role.DECODE, 1),
        ([(1, Role.DECODE), (1, Role.DECODE)], Role.DECODE, 1),
        ([(2, Role.DECODE), (1, Role.PREFILL)], Role.DECODE, 2),
        ([(2, Role.DECODE), (2, Role.PREFILL)], Role.DECODE, 2),
        ([(1, Role.DECODE), (2, Role.PREFILL), (1, Role.DECODE)], Role.PREFILL, 2),
        ([(7, Role.PREFILL), (6, Role.DECODE)], Role.PREFILL, 7),
    ],
)
async def test_the_highest_number_decides_in_whatever_order_flips_come(
    orders: list[tuple[int, Role]], role: Role, flip: int
) -> None:
    desk = Desk(Role.PREFILL)
    assert (desk.service.state().role, desk.service.state().flip) == (Role.PREFILL, 0)
    for order in orders:
        desk.service.handle(desk.link, Flip(*order))
    assert (desk.service.state().role, desk.service.state().flip) == (role, flip)


async def test_both_sides_drain_together() -> None:
    desk = Desk()
    desk.service.leave()
    assert desk.service.state().draining
    desk.service.drain()
    desk.prefill(1)
    desk.reserve(2)
    assert desk.failures() == [(1, Reason.DRAINING), (2, Reason.DRAINING)]
    assert Drain() in desk.engine.received


@pytest.mark.parametrize("make", [PrefillService, DecodeService])
async def test_a_worker_of_one_role_refuses_a_flip_by_name_and_goes_on(
    make: type[PrefillService | DecodeService], caplog: pytest.LogCaptureFixture
) -> None:
    service = make(RequestLimits(100, 32, 1), WorkerMetrics(Role.PREFILL), asyncio.get_running_loop())
    service.attach(QuietEngine())
    with caplog.at_level(logging.WARNING):
        service.handle(RecordingLink(), Flip(3, Role.DECODE))
    assert "flip 3 to decode is refused" in caplog.text
    assert (service.state().role, service.state().flip) == (None, 0)


async def test_a_first_token_that_the_model_has_not_never_reaches_the_engine() -> None:
    """A prefill worker that holds a valid key, and lies: the engine would look the token up beyond its tables."""
    desk = Desk(Role.DECODE)
    reserved, honest = desk.reserve(1), desk.reserve(2)
    desk.service.decode.on_landed(reserved, (FirstToken(0, 100),))
    desk.service.decode.on_landed(honest, (FirstToken(0, 99),))
    await asyncio.sleep(0)
    ends = [
        (type(command), command.key)
        for command in desk.engine.received
        if isinstance(command, HandoverLanded | ReleaseBlocks)
    ]
    assert ends == [(ReleaseBlocks, reserved), (HandoverLanded, honest)]
    assert desk.failures() == [(1, Reason.KV_CORRUPT)]
