"""Hand-over times lead to the traces of sampled requests: for readers that ask for OpenMetrics, on both sides."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from baton_decode_worker.service import DecodeService
from baton_prefill_worker.service import PrefillService
from baton_testing.processes.quiet_ends import QuietEngine, RecordingLink
from baton_wire.messages.gateway_link import Cancel, Prefill, Reserve, Retarget
from baton_wire.messages.pair_link import FirstToken
from baton_wire.messages.values import Address, PeerRef, Reason, RequestKey, Role, SamplingParams, pack_ids
from baton_worker.building.parts import RequestLimits
from baton_worker.reporting.metrics import WorkerMetrics

REQUEST, EPOCH, TRACE = bytes(range(16)), bytes(16), bytes(range(100, 116))
PEER = PeerRef(Address("127.0.0.1", 1), EPOCH)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
LIMITS = RequestLimits(100, 32, 2)


class NoTransfer:
    """A transfer that does nothing by itself."""

    def opened(self, key: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None: ...

    def retargeted(self, key: RequestKey, next_attempt: int, peer: PeerRef, deadline_s: float) -> None: ...

    def computed(self, key: RequestKey, tokens: int, blocks: tuple[int, ...]) -> None: ...

    def computing(self, key: RequestKey, tokens: int, layers: int, blocks: tuple[int, ...], rank: int) -> None: ...

    def first_tokens(self, key: RequestKey, first_tokens: tuple[FirstToken, ...]) -> None: ...

    def cancelled(self, key: RequestKey, reason: Reason = Reason.CANCELLED, detail: str = "") -> None: ...


def exemplars(metrics: WorkerMetrics) -> list[str]:
    """The traces that a reader of OpenMetrics is led to."""
    page = metrics.render(OPENMETRICS)[0].decode()
    families = text_string_to_metric_families(page)  # type: ignore[no-untyped-call]
    samples = (sample for family in families for sample in family.samples)
    return [sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar]


def prefill_service(metrics: WorkerMetrics) -> PrefillService:
    service = PrefillService(LIMITS, metrics, asyncio.get_running_loop())
    service.attach(QuietEngine())
    service.transfer = NoTransfer()
    return service


def prefill(attempt: int, trace_id: bytes | None) -> Prefill:
    sampling = SamplingParams(max_tokens=4, temperature=0)
    return Prefill(REQUEST, attempt, pack_ids([5]), 1, (0,), sampling, 30.0, "", PEER, trace_id=trace_id)


async def test_a_prefill_worker_leads_to_the_trace_of_a_sampled_request_alone() -> None:
    metrics = WorkerMetrics(Role.PREFILL)
    service, link = prefill_service(metrics), RecordingLink()
    service.handle(link, prefill(1, None))
    service.observe_handover(RequestKey(REQUEST, 1), 0.003)
    assert exemplars(metrics) == []
    service.handle(link, prefill(2, TRACE))
    service.observe_handover(RequestKey(REQUEST, 2), 0.003)
    assert exemplars(metrics) == [TRACE.hex()]
    plain = metrics.render()[0].decode()
    assert 'baton_handover_seconds_count{role="prefill"} 2.0' in plain
    assert TRACE.hex() not in plain


async def test_a_decode_worker_leads_to_the_trace_too() -> None:
    metrics = WorkerMetrics(Role.DECODE)
    service = DecodeService(LIMITS, metrics, asyncio.get_running_loop())
    service.attach(QuietEngine())
    sampling = SamplingParams(max_tokens=4, temperature=0)
    facts = (REQUEST, 1, pack_ids([5]), 1, (0,), sampling, 30.0, "", EPOCH)
    service.handle(RecordingLink(), Reserve(*facts, trace_id=TRACE))
    service.observe_handover(RequestKey(REQUEST, 1), 0.2)
    assert exemplars(metrics) == [TRACE.hex()]


async def test_kv_that_went_to_another_worker_still_leads_to_its_trace() -> None:
    metrics = WorkerMetrics(Role.PREFILL)
    service, link = prefill_service(metrics), RecordingLink()
    service.handle(link, prefill(1, TRACE))
    service.handle(link, Retarget(REQUEST, 1, 2, 30.0, PEER))
    service.observe_handover(RequestKey(REQUEST, 1), 0.003)  # the transfer knows it as it was opened
    assert exemplars(metrics) == [TRACE.hex()]


@pytest.mark.parametrize("end", ["cancelled", "released"])
async def test_no_trace_of_an_ended_request_is_kept(end: str) -> None:
    metrics = WorkerMetrics(Role.PREFILL)
    service, link = prefill_service(metrics), RecordingLink()
    service.handle(link, prefill(1, TRACE))
    if end == "cancelled":
        service.handle(link, Cancel(REQUEST, 1))
    else:
        service.on_release(RequestKey(REQUEST, 1))
        await asyncio.sleep(0)
    service.observe_handover(RequestKey(REQUEST, 1), 0.003)
    assert exemplars(metrics) == []
