"""One tenant at its worst next to another, and many at once: the relay on virtual time with workers that keep time.

At the end the same over HTTP, with fake workers.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from baton_gateway.errors import Problem
from baton_gateway.requests.admission import AdmissionLimits
from baton_gateway.requests.live_request import RelayRules
from baton_gateway.requests.request_events import LifeRules
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway, until
from baton_testing.gateway.virtual_pool import Client, VirtualPool
from baton_wire.messages.measures import StepTiming

CALM, FLOOD, THIRD = Tenant("calm"), Tenant("flood"), Tenant("third")
UNTIL_S = 9.0


@contextmanager
def virtual_pool(**options: Any) -> Iterator[VirtualPool]:
    pool = VirtualPool(**options)
    try:
        yield pool
    finally:
        pool.close()


def flood(
    pool: VirtualPool,
    tenant: Tenant,
    connections: int,
    prompt_tokens: int,
    output_tokens: int,
    until_s: float = UNTIL_S,
) -> list[Client]:
    """Each connection asks again as soon as it was answered, and a second after it was refused. Those that ended."""
    ended: list[Client] = []

    def again(client: Client) -> None:
        ended.append(client)
        pool.heap.after(1.0 if client.problem else 0.0, ask)

    def ask() -> None:
        if pool.now < until_s:
            pool.ask(tenant, prompt_tokens, output_tokens, on_end=again)

    for _ in range(connections):
        pool.heap.after(2.033 - pool.now, ask)
    return ended


def calm(pool: VirtualPool, tenant: Tenant = CALM, every_s: float = 0.1) -> list[Client]:
    """Small requests, one after the other, before and during the flood."""
    clients: list[Client] = []
    for number in range(int((UNTIL_S - 1.0) / every_s)):
        pool.heap.after(1.0 + number * every_s, lambda: clients.append(pool.ask(tenant, 100, 5)))
    return clients


def refused(clients: list[Client]) -> Counter[str | None]:
    return Counter(client.problem.code for client in clients if client.problem is not None)


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


@pytest.mark.parametrize(
    ("connections", "prompt_tokens", "output_tokens", "max_running", "within_s"),
    [
        (20, 550, 400, 1, 0.02),
        (150, 100, 200, None, 0.25),
        (300, 100, 5_000, None, 0.25),
        (40, 8_000, 20, None, 1.8),
        (10, 60_000, 2, None, 1.8),
    ],
    ids=["a quota of one", "150 connections", "long answers", "long prompts", "huge prompts"],
)
def test_whatever_one_tenant_does_another_is_never_refused_and_soon_answered(
    connections: int, prompt_tokens: int, output_tokens: int, max_running: int | None, within_s: float
) -> None:
    with virtual_pool() as pool:
        clients = calm(pool)
        flood(pool, Tenant("flood", max_running=max_running), connections, prompt_tokens, output_tokens)
        pool.run(UNTIL_S + 3.0)
    assert (len(clients), refused(clients)) == (80, Counter())
    assert p95([client.ttft_s for client in clients]) < within_s
    assert all(client.ended_s is not None for client in clients)


def test_a_tenant_at_its_quota_waits_at_its_quotas_pace_and_is_told_so_only_when_it_is_known() -> None:
    with virtual_pool(limits=AdmissionLimits(max_wait_s=20.0)) as pool:
        small = Tenant("small", max_running=1)
        first = [pool.ask(small, 100, 100) for _ in range(15)]
        assert refused(first) == Counter(), "the duration of a request is unknown"
        pool.run(7.0)
        latest = pool.ask(small, 100, 100)
        pool.run(60.0)
    assert latest.problem is not None
    assert latest.problem.code == "overloaded"
    wait_s = float(latest.problem.message.split("wait of ")[1].split(" s")[0])
    last_s = max(client.ended_s for client in first if client.problem is None and client.ended_s is not None)
    assert wait_s > 20.0
    assert refused(first)["queue_timeout"] > 0, "as it would have been refused later"
    assert last_s < 25.0


def test_two_floods_are_served_by_their_weights() -> None:
    def served(weight: float) -> float:
        with virtual_pool() as pool:
            heavy = flood(pool, Tenant("heavy", weight=weight), 60, 1_000, 5)
            light = flood(pool, Tenant("light"), 60, 1_000, 5)
            pool.run(UNTIL_S)
        return sum(not client.problem for client in heavy) / sum(not client.problem for client in light)

    assert 0.8 < served(1.0) < 1.25
    assert served(4.0) > 2.0


def test_floods_that_wait_for_decode_slots_have_them_by_their_weights() -> None:
    weights = (1.0, 2.0, 4.0)
    with virtual_pool(slots=32) as pool:
        floods = [
            flood(pool, Tenant(str(number), weight=weight), 60, 50, 100, until_s=50.0)
            for number, weight in enumerate(weights)
        ]
        pool.run(50.0)
    served = [sum(not client.problem and (client.ended_s or 0.0) > 25.0 for client in clients) for clients in floods]
    shares = [count / sum(served) * sum(weights) / weight for count, weight in zip(served, weights, strict=True)]
    assert all(0.9 < share < 1.1 for share in shares), shares


def test_many_tenants_in_an_overload_hold_no_more_than_one_would() -> None:
    def held(tenants: int) -> tuple[int, int]:
        with virtual_pool() as pool:
            owners = [Tenant(f"t{number}") for number in range(tenants)]
            clients: list[Client] = []
            for number in range(360):
                pool.ask_at(number / 30, owners[number * 7 % tenants], 1_000, 5, then=clients.append)
            pool.run(20.0)
        in_time = sum(client.ttft_s <= 0.5 for client in clients if client.asked_s > 3.0)
        return pool.most_bytes, in_time

    (one_bytes, one_good), (many_bytes, many_good) = held(1), held(60)
    assert many_bytes <= 1.5 * one_bytes
    assert many_good >= 0.97 * one_good


def test_keyless_requests_are_one_tenants_whatever_they_say() -> None:
    with virtual_pool(limits=AdmissionLimits(max_running=2, max_queued=4)) as pool:
        clients = [pool.ask(DEFAULT_TENANT, 100, 20, cache_salt=f"salt {number}") for number in range(9)]
        assert refused(clients) == Counter({"queue_full": 3})
        assert len(pool.admission._queues) == 1
        line = next(iter(pool.relay._loads._loads.values()))
        assert line.num_tenants == 1
        pool.run(9.0)
        assert (len(pool.admission._queues), line.num_tenants) == (0, 0)


def test_who_gives_way_in_a_full_queue_is_told_and_the_newcomer_is_served() -> None:
    with virtual_pool(limits=AdmissionLimits(max_running=1, max_queued=8)) as pool:
        many = [pool.ask(FLOOD, 100, 20) for _ in range(9)]
        newcomer = pool.ask(CALM, 100, 20)
        assert refused(many) == Counter({"queue_full": 1})
        assert many[-1].problem is not None, "the newest"
        pool.run(20.0)
    assert newcomer.problem is None
    assert newcomer.ttft_s < 2.0, "the tenant with less at work is next"


def parked(pool: VirtualPool, tenant: Tenant, count: int, tokens: int = 100) -> list[Client]:
    clients = [pool.ask(tenant, tokens, 2) for _ in range(count)]
    pool.run(pool.now + 0.01)
    return clients


@pytest.mark.parametrize(("max_parked", "max_bytes"), [(8, 1 << 20), (100, 8 * 800)], ids=["requests", "bytes"])
def test_one_tenants_parked_requests_leave_room_for_another(max_parked: int, max_bytes: int) -> None:
    rules = RelayRules(
        LifeRules(park_s=60.0), generation_defaults=False, max_parked=max_parked, max_parked_bytes=max_bytes
    )
    with virtual_pool(rules=rules, is_linked=False) as pool:
        many, few = parked(pool, FLOOD, 12), parked(pool, CALM, 2)
        assert (refused(many), refused(few)) == (Counter({"no_routable_workers": 6}), Counter())
        assert pool.relay.num_parked == 8
        more = parked(pool, CALM, 9)
        assert len(more) - refused(more).total() == 2, "half of the room"
        pool.link()
        pool.run(pool.now + 5.0)
        assert [client.problem for client in few] == [None, None]
        assert pool.relay.num_live == 0


def test_the_backlog_is_what_a_worker_could_take() -> None:
    with virtual_pool(token_s=0.01) as pool:
        small = Tenant("small", max_running=1)
        for _ in range(20):
            pool.ask(small, 100, 2)
        pool.run(0.5)
        backlog = pool.relay.backlog()
        assert (backlog.waiting, backlog.tokens) == (0, 0), "nineteen wait for the first"
        asked: list[Client] = []
        for number in range(4):
            pool.heap.after(number / 100, lambda: asked.append(pool.ask(CALM, 100, 2)))
        pool.run(1.0)
        backlog = pool.relay.backlog()
        assert backlog.waiting >= 3, "a real queue is reported"
        assert 0.4 < backlog.oldest_s < 0.6


def test_demand_is_not_what_a_tenant_asks_beyond_its_quota() -> None:
    def num_refused(tenant: Tenant, limits: AdmissionLimits) -> int:
        with virtual_pool(limits=limits) as pool:
            clients = [pool.ask(tenant, 100, 2) for _ in range(20)]
            telemetry = pool.metrics.telemetry
            summary = telemetry.summary(1.0, 1.0, pool.relay.backlog(), (), "")
            assert refused(clients)["queue_full"] > 10
            return summary.arrived.refused

    assert num_refused(Tenant("small", max_running=1, max_queued=2), AdmissionLimits()) == 0
    assert num_refused(FLOOD, AdmissionLimits(max_running=1, max_queued=2)) == 17


@pytest.mark.parametrize("ask", ["hang up", "end"])
def test_nothing_of_a_tenant_is_left_when_its_requests_are_gone(ask: str) -> None:
    with virtual_pool() as pool:
        clients = [pool.ask(tenant, 400, 30) for tenant in (CALM, FLOOD, THIRD) for _ in range(40)]
        pool.run(0.7)
        if ask == "hang up":
            with pool.loop.entered():
                for client in list(pool.open):
                    assert client.live is not None
                    pool.relay.client_gone(client.live)
        pool.run(60.0)
        line = next(iter(pool.relay._loads._loads.values()))
        assert len(clients) == 120
        assert (line.num_tenants, len(line), pool.admission.num_running, pool.admission._queues) == (0, 0, 0, {})


def test_a_refusal_says_about_what_the_wait_would_have_been() -> None:
    """Every tenth one that would be refused is let in."""
    with virtual_pool() as pool:
        lines: Any = pool.relay._loads
        decide: Callable[..., Problem | None] = lines.overload
        waits: list[tuple[float, Client]] = []
        refusals: list[Problem] = []

        def overload(*arguments: Any) -> Problem | None:
            problem = decide(*arguments)
            if problem is not None:
                refusals.append(problem)
            return None if len(refusals) % 10 == 0 else problem

        lines.overload = overload
        owners = [Tenant(f"t{number}") for number in range(20)]

        def ask(owner: Tenant) -> None:
            before = len(refusals)
            client = pool.ask(owner, 1_000, 5)
            if client.problem is None and len(refusals) > before:
                waits.append((float(refusals[-1].message.split("wait of ")[1].split(" s")[0]), client))

        for number in range(400):
            pool.heap.after(number / 30, partial(ask, owners[number * 7 % 20]))
        pool.run(20.0)
    assert len(waits) > 10
    ratios = sorted(wait_s / client.ttft_s for wait_s, client in waits)
    assert 0.5 < ratios[len(ratios) // 2] < 2.0


async def test_over_http_a_tenant_at_its_quota_costs_another_no_refusal(pool: FakePool, tmp_path: Path) -> None:
    def tenant(name: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "key_sha256": [hashlib.sha256(f"key-of-{name}".encode()).hexdigest()], **more}

    keys = tmp_path / "tenants.json"
    keys.write_text(json.dumps({"tenants": [tenant("flood", max_running=1, max_queued=64), tenant("calm")]}))
    async with running_gateway(pool, f"--api-keys={keys}") as gateway, aiohttp.ClientSession() as http:

        async def ask(name: str, words: int, max_tokens: int) -> int:
            body = {"model": "tiny", "prompt": "word " * words, "max_tokens": max_tokens, "ignore_eos": True}
            headers = {"Authorization": f"Bearer key-of-{name}"}
            async with http.post(gateway.url("/v1/completions"), json=body, headers=headers) as answer:
                return answer.status

        worker = pool.prefill[0]
        worker.timings = (StepTiming(1, 1_000, 5e5, 0, 0, 1.0),)
        await worker.report()
        await until(lambda: any(view.token_s for view in gateway.server.table.views()))
        worker.hold = True
        flood = [asyncio.create_task(ask("flood", 300, 9)) for _ in range(20)]
        await until(lambda: gateway.server.relay.num_live == 20 and worker.received != [])
        worker.hold = False
        assert gateway.server.relay.backlog().waiting == 0, "none of the nineteen could go to a worker"
        statuses = [await ask("calm", 3, 1) for _ in range(100)]
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
    assert Counter(statuses) == {200: 100}
