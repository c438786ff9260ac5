"""Whose turn it is where requests name a class or a session."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from baton_gateway.errors import Problem
from baton_gateway.requests.admission import BATCH_ON_THE_WAY, Admission, AdmissionLimits, Verdict
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.waiting_line import STANDARD_PLACE, QueuePlace
from baton_wire.tenant_table import PriorityClass, TenantLimits

A, B = Tenant("a"), Tenant("b")
BATCH, INTERACTIVE = QueuePlace(PriorityClass.BATCH), QueuePlace(PriorityClass.INTERACTIVE)


class Process:
    """A process whose requests reach a worker at once and end one after another."""

    def __init__(self, max_running: int, max_queued: int = 4_096) -> None:
        self.admission = Admission(AdmissionLimits(max_running=max_running, max_queued=max_queued))
        self.owners: dict[int, tuple[str, QueuePlace]] = {}
        self.running: list[int] = []

    def ask(self, tenant: Tenant, place: QueuePlace = STANDARD_PLACE, sequences: int = 1) -> int | Problem:
        for evicted in self.admission.select_evictions(tenant, sequences, place=place):
            del self.owners[evicted]
            self.begin(self.admission.leave(evicted))
        offer = self.admission.offer(tenant, sequences, 0.0, place=place)
        if isinstance(offer, Problem):
            return offer
        ticket, verdict = offer
        self.owners[ticket] = tenant.name, place
        if verdict is Verdict.ADMITTED:
            self.begin([ticket])
        return ticket

    def begin(self, tickets: list[int]) -> None:
        for ticket in tickets:
            self.running.append(ticket)
            self.begin(self.admission.set_running(ticket, 1))

    def end(self, ticket: int) -> tuple[str, QueuePlace]:
        self.running.remove(ticket)
        self.begin(self.admission.leave(ticket))
        return self.owners.pop(ticket)

    def counts(self) -> Counter[tuple[str, PriorityClass]]:
        return Counter((self.owners[ticket][0], self.owners[ticket][1].priority) for ticket in self.running)


def test_interactive_requests_go_before_a_tenants_others_and_batch_last() -> None:
    process = Process(max_running=1)
    first = process.ask(A)
    batch, standard, interactive = process.ask(A, BATCH), process.ask(A), process.ask(A, INTERACTIVE)
    turns = []
    while process.running:
        turns.append(process.running[0])
        process.end(process.running[0])
    assert turns == [first, interactive, standard, batch]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 4.0)])
def test_naming_a_class_changes_no_share_between_tenants(seed: int, weights: tuple[float, float]) -> None:
    dice = random.Random(seed)
    eager, plain = Tenant("eager", weight=weights[0]), Tenant("plain", weight=weights[1])
    process, running = Process(max_running=64), Counter[str]()
    for turn in range(1_500):
        while sum(owner == "eager" for owner, _ in process.owners.values()) < 200:
            process.ask(eager, INTERACTIVE)
        while sum(owner == "plain" for owner, _ in process.owners.values()) < 200:
            process.ask(plain)
        process.end(dice.choice(process.running))
        if turn >= 500:
            running.update({name: count for (name, _), count in process.counts().items()})
    assert running["eager"] / running.total() == pytest.approx(weights[0] / sum(weights), rel=0.05)


def test_batch_fills_the_room_that_is_left_and_others_find_spare_room() -> None:
    process = Process(max_running=64)
    for _ in range(100):
        process.ask(A, BATCH)
    assert process.counts() == {("a", BATCH.priority): 64}, "no starvation: all of the slack is used"
    for tenant in (A, B):
        for place in (STANDARD_PLACE, INTERACTIVE):
            process.ask(tenant, place)
    assert process.counts().total() == 68, "also its own other requests begin at once"
    others = [process.ask(B) for _ in range(20)]
    while any(ticket in process.owners and ticket not in process.running for ticket in others):
        batch = next(ticket for ticket in process.running if process.owners[ticket][1] == BATCH)
        before = process.counts()["a", BATCH.priority]
        process.end(batch)
        assert process.counts()["a", BATCH.priority] == before - 1, "no batch begins while others wait"


def test_batch_of_one_tenant_waits_for_all_tenants_others() -> None:
    process = Process(max_running=1)
    first, batch, plain = process.ask(A), process.ask(B, BATCH), process.ask(A)
    assert isinstance(first, int)
    process.end(first)
    assert process.running == [plain], "although b has nothing running"
    process.end(process.running[0])
    assert process.running == [batch]


def test_batch_runs_while_others_wait_for_their_own_tenants_limit() -> None:
    limited = Tenant("limited", max_running=1, limits=TenantLimits(max_concurrent=1))
    process = Process(max_running=4)
    for _ in range(10):
        process.ask(limited)
    for _ in range(10):
        process.ask(B, BATCH)
    assert process.counts() == {("limited", PriorityClass.STANDARD): 1, ("b", PriorityClass.BATCH): 3}
    assert isinstance(process.ask(A, INTERACTIVE), int)
    process.end(next(ticket for ticket in process.running if process.owners[ticket][0] == "b"))
    assert process.counts()["a", PriorityClass.INTERACTIVE] == 1


def test_batches_of_tenants_share_slack_by_weight() -> None:
    dice, process, running = random.Random(3), Process(max_running=32), Counter[str]()
    heavy = Tenant("heavy", weight=3.0)
    for _ in range(1_000):
        for tenant in (heavy, B):
            while sum(owner == tenant.name for owner, _ in process.owners.values()) < 100:
                process.ask(tenant, BATCH)
        process.end(dice.choice(process.running))
        running.update({name: count for (name, _), count in process.counts().items()})
    assert running["heavy"] / running.total() == pytest.approx(0.75, rel=0.05)


def test_few_batch_requests_are_on_their_way_to_workers() -> None:
    admission = Admission(AdmissionLimits(max_running=1_024))
    tickets = []
    for _ in range(100):
        offer = admission.offer(A, 1, 0.0, place=BATCH)
        assert not isinstance(offer, Problem)
        tickets.append(offer[0])
    assert admission.num_running == BATCH_ON_THE_WAY, "no queue at the workers that others would join"
    assert admission.set_running(tickets[0], 1) == [tickets[BATCH_ON_THE_WAY]]
    assert admission.leave(tickets[1]) == [tickets[BATCH_ON_THE_WAY + 1]]
    assert not admission._on_the_way.keys() & set(tickets[:2])


def test_batch_is_refused_first_where_the_queue_is_full() -> None:
    process = Process(max_running=1, max_queued=4)
    first = process.ask(A)
    batch = [process.ask(B, BATCH), process.ask(B, BATCH)]
    for _ in range(2):
        process.ask(A)
    assert isinstance(process.ask(A, BATCH), int), "a has less of the batch class than b"
    assert batch[1] not in process.owners
    for _ in range(2):
        assert isinstance(process.ask(A), int)
    assert batch[0] not in process.owners
    assert {place.priority for _, place in process.owners.values()} == {PriorityClass.STANDARD}
    assert isinstance(process.ask(A, BATCH), Problem)
    assert isinstance(process.ask(A), Problem), "nothing of a lower class is left"
    assert first in process.owners


def test_an_interactive_request_takes_the_queue_place_of_its_tenants_others() -> None:
    process = Process(max_running=1, max_queued=3)
    for _ in range(4):
        process.ask(A)
    assert isinstance(process.ask(A, INTERACTIVE), int)
    assert isinstance(process.ask(A), Problem)
    small = Tenant("small", max_running=1, max_queued=1)
    process = Process(max_running=8)
    process.ask(small)
    waits = process.ask(small)
    assert isinstance(process.ask(small, INTERACTIVE), int)
    assert waits not in process.owners


def test_one_session_holds_up_and_evicts_no_other_of_its_tenant() -> None:
    process = Process(max_running=1, max_queued=500)
    flood = QueuePlace(session=1)
    tickets = [process.ask(A, flood) for _ in range(501)]
    other = process.ask(A, QueuePlace(session=2))
    assert isinstance(other, int), "it takes the place of the flood's newest"
    assert tickets[-1] not in process.owners
    assert isinstance(process.ask(A, flood), Problem)
    process.end(process.running[0])
    process.end(process.running[0])
    assert process.running == [other]


def test_quotas_make_a_request_wait_for_what_goes_before_it_alone() -> None:
    small = Tenant("small", max_running=1)
    process = Process(max_running=8)
    for _ in range(10):
        process.ask(small, BATCH)
    turns = process.admission.quota_turns
    assert (turns(small, 1, BATCH), turns(small, 1), turns(small, 1, INTERACTIVE)) == (10.0, 1.0, 1.0)
    share = process.admission.share_ahead
    assert (share("small", "small", INTERACTIVE), share("small", "a", STANDARD_PLACE)) == (0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_counts_hold_and_room_is_used_whatever_classes_come_and_go(seed: int) -> None:
    dice, process = random.Random(seed), Process(max_running=4, max_queued=12)
    for _ in range(400):
        if process.running and dice.random() < 0.5:
            process.end(dice.choice(process.running))
        else:
            process.ask(dice.choice([A, B]), QueuePlace(dice.choice(list(PriorityClass)), dice.choice([None, 1, 2])))
        admission = process.admission
        assert admission.num_running == len(process.running)
        assert admission.num_waiting == len(process.owners) - len(process.running) <= 12
        assert len(process.running) == min(4, len(process.owners))
    for ticket in list(process.owners):
        process.begin(process.admission.leave(ticket))
    assert (process.admission._queues, process.admission._on_the_way, process.admission.num_waiting) == ({}, {}, 0)
