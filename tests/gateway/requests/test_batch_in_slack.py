"""A flood of the batch class next to other requests: the relay on virtual time with workers that keep time."""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec
import pytest

from baton_gateway.requests.admission import Admission, AdmissionLimits, Verdict
from baton_gateway.requests.batch_slack import BatchSlack, batch_slack
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import QueuePlace
from baton_gateway.workers.worker_view import WorkerView
from baton_testing.gateway.virtual_pool import Client, VirtualPool
from baton_wire.tenant_table import PriorityClass

TEAM, OTHER = Tenant("team"), Tenant("other")
BATCH_OF_TEAM = Tenant("team", priorities=(PriorityClass.BATCH,))


def asked_in_a_flood(tenant: Tenant, num_flood: int) -> tuple[list[Client], list[Client]]:
    """Eight requests of a tenant, one a second, and a flood of batch requests that came before them."""
    pool = VirtualPool(limits=AdmissionLimits(max_wait_s=120.0))
    try:
        clients: list[Client] = []
        flooding = [pool.ask(BATCH_OF_TEAM, 1_000, 20) for _ in range(num_flood)]
        for second in range(1, 9):
            pool.ask_at(float(second), tenant, 200, 10, then=clients.append)
        pool.run(30.0)
        return clients, flooding
    finally:
        pool.close()


@pytest.mark.parametrize("tenant", [TEAM, OTHER])
def test_a_flood_of_batch_makes_no_other_request_late_and_is_served_in_the_slack(tenant: Tenant) -> None:
    clients, flooding = asked_in_a_flood(tenant, 120)
    assert [client.problem for client in (*clients, *flooding)] == [None] * 128, "also no batch request is refused"
    assert max(client.ttft_s for client in clients) < 0.5, "the target; alone it is 0.02 s"


SLOTS, STEP_S, TOKENS = 64, 0.02, 50
WARM_S, END_S = 3.0, 15.0
TTFT_S, TPOT_S = 0.5, 0.05


@dataclass(slots=True)
class Served:
    """What became of interactive requests, and how busy the decode worker was."""

    requests: int
    in_time: float
    """The share that met both targets."""
    busy: float
    """The share of slots that sequences took, of every step's."""


def serve(*, load: float, lines_in_hand: int) -> Served:
    """Interactive requests at random times that take a share of the slots, next to a batch that has always more."""
    pool, dice = VirtualPool(limits=AdmissionLimits(max_wait_s=120.0), slots=SLOTS, token_s=2e-5), random.Random(4)
    rows: list[int] = []
    step = pool._step

    def counted() -> None:
        if pool.now > WARM_S:
            rows.append(sum(row.choices for row in pool._rows.values() if row.is_landed))
        step()

    def next_line(ended: Client | None = None) -> None:
        again_s = 1.0 if ended is not None and ended.problem is not None else 0.0

        def ask() -> None:
            pool.ask(BATCH_OF_TEAM, 200, dice.randint(TOKENS // 2, 3 * TOKENS // 2), on_end=next_line)

        pool.heap.after(again_s, ask)

    pool._step = counted  # type: ignore[method-assign]
    clients: list[Client] = []
    try:
        at_s = 0.5
        while (at_s := at_s + dice.expovariate(load * SLOTS / (STEP_S * TOKENS))) < END_S:
            pool.ask_at(at_s, TEAM, 500, TOKENS, then=clients.append)
        for _ in range(lines_in_hand):
            next_line()
        pool.run(END_S)
    finally:
        pool.close()
    judged = [client for client in clients if WARM_S < client.asked_s < END_S - 3.0]
    return Served(
        len(judged), sum(map(is_in_time, judged)) / len(judged), sum(rows) * STEP_S / (SLOTS * (END_S - WARM_S))
    )


def is_in_time(client: Client) -> bool:
    if client.problem is not None or client.ended_s is None or client.first_s is None:
        return False
    return client.ttft_s <= TTFT_S and (client.ended_s - client.first_s) / (TOKENS - 1) <= TPOT_S


def test_a_batch_fills_nine_tenths_of_the_slack_and_interactive_requests_keep_their_targets() -> None:
    alone, shared = (serve(load=0.5, lines_in_hand=lines) for lines in (0, 128))
    assert (alone.requests, alone.in_time) == (shared.requests, 1.0)
    assert shared.in_time >= 0.95 * alone.in_time
    slack = 1.0 - alone.busy
    assert shared.busy - alone.busy >= 0.9 * slack


def views(*loads: int, slots: int = 64, gateways: int = 1) -> list[WorkerView]:
    """Decode workers with these loads, and a prefill worker."""
    pool = VirtualPool(slots=slots)
    try:
        linked = pool.decode.linked, pool.prefill.linked
        decode, prefill = (worker.view() for worker in linked if worker is not None)
    finally:
        pool.close()
    return [prefill, *(msgspec.structs.replace(decode, load_sequences=load, gateways=gateways) for load in loads)]


def test_the_slack_is_the_free_slots_less_one_of_thirty_two() -> None:
    assert batch_slack(views(0), 0) == BatchSlack(62, 62)
    assert batch_slack(views(60, 64), 0) == BatchSlack(0, 124)
    assert batch_slack(views(70, 50), 0) == BatchSlack(10, 124), "more sent than slots is no negative room elsewhere"
    assert batch_slack(views(0, slots=2), 0) == BatchSlack(1, 1)
    assert batch_slack(views(0, slots=1), 0) == BatchSlack(1, 1)


def test_there_is_no_slack_while_other_runs_wait_for_workers() -> None:
    assert batch_slack(views(0), 1) == BatchSlack(0, 62)


def test_gateway_processes_share_the_slack() -> None:
    assert batch_slack(views(0, gateways=4), 0) == BatchSlack(16, 62)
    assert batch_slack(views(61, gateways=4), 0) == BatchSlack(0, 62)


def test_without_decode_workers_slots_bound_nothing() -> None:
    assert batch_slack(views(), 0) is None
    assert batch_slack([], 3) is None


def test_a_request_for_more_sequences_than_there_are_slots_begins_when_all_are_free() -> None:
    admission = Admission(AdmissionLimits())
    free = 3
    admission.slack = lambda: BatchSlack(free, 4)
    ticket, verdict = admission.offer(BATCH_OF_TEAM, 8, 0.0, 8, 1, QueuePlace(PriorityClass.BATCH))  # type: ignore[misc]
    assert (verdict, admission.start_batches()) == (Verdict.QUEUED, [])
    free = 4
    assert admission.start_batches() == [ticket]


def test_a_request_of_another_class_needs_no_slack() -> None:
    admission = Admission(AdmissionLimits())
    admission.slack = lambda: BatchSlack(0, 4)
    _, verdict = admission.offer(TEAM, 1, 0.0, 1, 1, QueuePlace(PriorityClass.STANDARD))  # type: ignore[misc]
    assert verdict is Verdict.ADMITTED
