"""Records on a virtual clock: their spans tile the client's time exactly."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from baton_gateway.records.parts import Part
from baton_gateway.records.record_query import RecordQuery, answer_query
from baton_gateway.records.request_record import RequestRecord
from baton_gateway.requests.admission import AdmissionLimits
from baton_gateway.requests.tenant import Tenant
from baton_testing.gateway.virtual_pool import Client, VirtualPool
from baton_testing.simulation.gateway import check_tiling


def records(pool: VirtualPool) -> list[RequestRecord]:
    return [kept.record() for kept in pool.relay.records.latest()]


def largest(record: RequestRecord) -> str:
    return record.parts()[0][0]


@pytest.fixture
def pool() -> Iterator[VirtualPool]:
    pool = VirtualPool(slots=4, token_s=1e-3)
    yield pool
    pool.close()


@pytest.fixture
def fast_pool() -> Iterator[VirtualPool]:
    pool = VirtualPool(slots=8)
    yield pool
    pool.close()


def ask(pool: VirtualPool, at_s: float, *arguments: object, **options: object) -> None:
    def closed(client: Client) -> None:
        if client.live is not None:  # else it was refused on arrival
            with pool.loop.entered():
                pool.relay.closed(client.live)
            check_tiling(next(pool.relay.records.latest()).record(), pool.now - at_s)

    pool.heap.after(at_s - pool.now, lambda: pool.ask(*arguments, on_end=closed, **options))  # type: ignore[arg-type]


def test_spans_of_1000_random_requests_tile_the_clients_time(fast_pool: VirtualPool) -> None:
    pool = fast_pool
    dice, tenants = random.Random(55), [Tenant("a"), Tenant("b", max_running=2), Tenant("c")]
    for place in range(1_000):
        prompt, output = dice.randrange(1, 800), dice.randrange(1, 12)
        ask(pool, place * 0.1, dice.choice(tenants), prompt, output, n=dice.choice((1, 1, 1, 2)))
    pool.run(2_000.0)
    got = records(pool)
    assert len(got) > 900, "few are refused on arrival"
    for record in got:
        check_tiling(record)
    assert {record.outcome for record in got} == {"finished"}


def test_a_request_at_its_tenants_quota_waited_for_that(pool: VirtualPool) -> None:
    tenant = Tenant("small", max_running=1)
    ask(pool, 0.0, tenant, 10, 200)
    ask(pool, 0.1, tenant, 10, 5)
    pool.run(60.0)
    late = min(records(pool), key=lambda record: record.completion_tokens)
    assert largest(late) == Part.QUEUED
    [queued] = [span for span in late.spans if span.part == Part.QUEUED]
    assert queued.detail == "its tenant's own quota"


def test_a_prompt_that_waits_for_busy_workers_was_held(pool: VirtualPool) -> None:
    for _ in range(4):
        ask(pool, 0.0, Tenant("a"), 2_000, 2)
    pool.run(60.0)
    late = max(records(pool), key=lambda record: record.duration_ns)
    assert largest(late) == Part.HELD
    check_tiling(late)


def test_a_request_that_came_before_any_worker_was_parked() -> None:
    from baton_gateway.requests.live_request import RelayRules
    from baton_gateway.requests.request_events import LifeRules

    rules = RelayRules(LifeRules(park_s=30.0), generation_defaults=False)
    pool = VirtualPool(is_linked=False, rules=rules, limits=AdmissionLimits())
    ask(pool, 0.0, Tenant("a"), 10, 2)
    pool.heap.after(3.0, pool.link)
    pool.run(60.0)
    [record] = records(pool)
    assert (largest(record), record.outcome) == (Part.PARKED, "finished")
    check_tiling(record)
    pool.close()


def test_records_are_found_by_id_tenant_and_length(pool: VirtualPool) -> None:
    for place in range(12):
        ask(pool, float(place), Tenant(f"t{place % 3}"), 10, 1 + place)
    pool.run(60.0)
    ring = pool.relay.records
    page = answer_query(ring, RecordQuery(slowest=2, tenant="t1"))
    assert [record.completion_tokens for record in page.records] == [11, 8]
    assert answer_query(ring, RecordQuery(id="unknown")).records == []
