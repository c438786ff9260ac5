"""The order in which the prefill worker's service passes an engine step on to its gateway and to the transfer."""

from __future__ import annotations

import asyncio

from baton_engine.scheduling.events import Drawn, Prefilled
from baton_prefill_worker.service import PrefillService
from baton_testing.processes.quiet_ends import QuietEngine, RecordingLink
from baton_wire.messages.gateway_link import Prefill, Tokens
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Address, Finish, PeerRef, Reason, RequestKey, Role, SamplingParams, pack_ids
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics

REQUEST = bytes(range(16))
KEY = RequestKey(REQUEST, 1)


class HastyTransfer:
    """Releases a request as soon as it has its first tokens, as happens when all of these are the last."""

    def __init__(self, service: PrefillService) -> None:
        self._service = service

    def opened(self, key: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None: ...

    def retargeted(self, key: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None: ...

    def computed(self, key: RequestKey, tokens: int, blocks: tuple[int, ...]) -> None: ...

    def computing(self, key: RequestKey, tokens: int, layers: int, blocks: tuple[int, ...], rank: int) -> None: ...

    def first_tokens(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None:
        self._service.on_release(key)

    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...


async def test_a_first_token_that_is_the_last_reaches_the_gateway_before_its_release() -> None:
    service = PrefillService(RequestLimits(100, 32, 1), WorkerMetrics(Role.PREFILL), asyncio.get_running_loop())
    service.attach(QuietEngine())
    service.transfer = HastyTransfer(service)
    link = RecordingLink()
    sampling = SamplingParams(max_tokens=1, temperature=0)
    decode = PeerRef(Address("127.0.0.1", 1), bytes(16))
    service.handle(link, Prefill(REQUEST, 1, pack_ids([5]), 1, (0,), sampling, 30.0, "", decode))
    service.on_events(
        QuietEngine.snapshot,
        [
            Drawn(KEY, 0, 0, (7,), None, Finish.LENGTH),
            Prefilled(KEY, (FirstToken(0, 7, None, Finish.LENGTH),)),
        ],
    )
    await asyncio.sleep(0)
    assert [entry.ids for frame in link.received if isinstance(frame, Tokens) for entry in frame.entries] == [(7,)]
    assert service.open_requests == 0
