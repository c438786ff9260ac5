"""Whose turn it is."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from baton_gateway.errors import Problem
from baton_gateway.requests.admission import Admission, AdmissionLimits, Verdict
from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_gateway.tenancy.tenants import Tenants
from baton_wire.tenant_table import TenantLimits

A, B = Tenant("a"), Tenant("b")
TWO_OWNERS = '{"tenants": [{"name": "a", "key_sha256": ["0"]}, {"name": "b", "key_sha256": ["0"]}]}'.replace(
    "0", "0" * 64
)


def offered(admission: Admission, tenant: Tenant = DEFAULT_TENANT, now: float = 0.0) -> int:
    verdict = admission.offer(tenant, 1, now)
    assert not isinstance(verdict, Problem)
    return verdict[0]


def test_requests_run_up_to_the_limit_then_wait_then_are_refused() -> None:
    admission = Admission(AdmissionLimits(max_running=2, max_queued=1))
    verdicts = [admission.offer(DEFAULT_TENANT, 1, 0) for _ in range(4)]
    assert [verdict if isinstance(verdict, Problem) else verdict[1] for verdict in verdicts][:3] == [
        Verdict.ADMITTED, Verdict.ADMITTED, Verdict.QUEUED,
    ]  # fmt: skip
    assert isinstance(verdicts[3], Problem)
    assert verdicts[3].status == 429
    assert (admission.num_running, admission.num_waiting) == (2, 1)


def test_who_waited_longest_is_next() -> None:
    admission = Admission(AdmissionLimits(max_running=1))
    tickets = [offered(admission) for _ in range(3)]
    assert admission.leave(tickets[0]) == [tickets[1]]
    assert admission.leave(tickets[1]) == [tickets[2]]
    assert admission.leave(tickets[2]) == []


def test_leaving_twice_or_unknown_changes_nothing() -> None:
    admission = Admission(AdmissionLimits(max_running=1))
    first, second = offered(admission), offered(admission)
    assert admission.leave(second) == []
    assert admission.leave(second) == []
    assert admission.leave(99) == []
    assert (admission.num_running, admission.num_waiting) == (1, 0)
    assert admission.leave(first) == []


def test_a_flood_of_one_tenant_waits_behind_itself() -> None:
    admission = Admission(AdmissionLimits(max_running=4))
    flood = [offered(admission, A) for _ in range(20)]
    calm = [offered(admission, B) for _ in range(3)]
    turns = [ticket for running in flood[:4] for ticket in admission.leave(running)]
    assert turns[0] == calm[0], "nothing of b runs yet"
    assert set(calm) & set(turns[:4]) >= {calm[0], calm[1]}


def test_a_weight_is_a_share() -> None:
    admission = Admission(AdmissionLimits(max_running=4))
    heavy, light = Tenant("heavy", weight=3.0), Tenant("light", weight=1.0)
    first = [offered(admission, DEFAULT_TENANT) for _ in range(4)]
    for _ in range(10):
        offered(admission, heavy)
        offered(admission, light)
    names = [admission._owner[ticket].tenant.name for ticket in first for ticket in admission.leave(ticket)]
    assert sorted(names) == ["heavy", "heavy", "heavy", "light"]


def test_quotas_of_a_tenant_hold_only_that_tenant_back() -> None:
    admission = Admission(AdmissionLimits(max_running=10))
    small = Tenant("small", max_running=1, max_queued=1)
    assert offered(admission, small)
    assert isinstance(admission.offer(small, 1, 0), tuple)
    refused = admission.offer(small, 1, 0)
    assert isinstance(refused, Problem)
    other = admission.offer(A, 1, 0)
    assert not isinstance(other, Problem)
    assert other[1] is Verdict.ADMITTED


def test_quotas_count_sequences_and_a_large_request_begins_alone() -> None:
    admission = Admission(AdmissionLimits(max_running=100))
    small = Tenant("small", max_running=8)
    one = offered(admission, small)
    large = admission.offer(small, 1024, 0, at_once=16)
    assert not isinstance(large, Problem)
    assert large[1] is Verdict.QUEUED, "16 at once and one running are over the quota of 8"
    assert admission.num_waiting == 1024
    assert admission.leave(one) == [large[0]]
    assert (admission.num_running, admission.num_waiting) == (16, 0)
    assert not admission.may_grow(large[0], 16)
    waits = admission.offer(small, 1, 0)
    assert not isinstance(waits, Problem)
    assert waits[1] is Verdict.QUEUED
    assert admission.set_running(large[0], 7) == [waits[0]], "as its sequences end, others begin"
    assert admission.num_running == 8


def test_many_sequences_of_one_request_do_not_keep_another_tenant_out() -> None:
    admission = Admission(AdmissionLimits(max_running=64, max_queued=8))
    large = admission.offer(A, 1024, 0, at_once=16)
    assert not isinstance(large, Problem)
    admission.set_running(large[0], 48)
    assert not admission.may_grow(large[0], 32)
    verdict = admission.offer(B, 1, 0)
    assert not isinstance(verdict, Problem)
    assert verdict[1] is Verdict.ADMITTED


def test_waiting_has_a_limit_in_time() -> None:
    admission = Admission(AdmissionLimits(max_running=1, max_wait_s=5))
    offered(admission, A, now=0)
    second, third = offered(admission, A, now=1), offered(admission, B, now=3)
    assert admission.next_expiry() == 6
    assert admission.expired(5.9) == []
    assert admission.expired(6) == [second]
    admission.leave(second)
    assert admission.next_expiry() == 8
    assert admission.expired(8) == [third]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_counts_hold_and_nobody_waits_beside_a_free_place(seed: int) -> None:
    random_ = random.Random(seed)
    admission = Admission(AdmissionLimits(max_running=3, max_queued=8))
    inside: set[int] = set()
    running: set[int] = set()
    for _ in range(300):
        if inside and random_.random() < 0.5:
            ticket = random_.choice(sorted(inside))
            inside.discard(ticket)
            running.discard(ticket)
            running.update(admission.leave(ticket))
        else:
            verdict = admission.offer(random_.choice([A, B, DEFAULT_TENANT]), 1, 0)
            if not isinstance(verdict, Problem):
                inside.add(verdict[0])
                if verdict[1] is Verdict.ADMITTED:
                    running.add(verdict[0])
        assert running <= inside
        assert (admission.num_running, admission.num_waiting) == (len(running), len(inside) - len(running))
        assert len(running) == min(3, len(inside))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"tenants": []}',
        '{"tenants": [{"name": "a", "key": "secret"}]}',
        '{"tenants": [{"name": "a b"}]}',
        '{"tenants": [{"name": "a", "key_sha256": ["xyz"]}]}',
        '{"tenants": [{"name": "a", "weight": 0}]}',
        TWO_OWNERS,
    ],
)
def test_a_bad_key_file_names_itself(content: str, tmp_path: Path) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"tenants\.json"):
        Tenants(path)


def tickets(admission: Admission, tenant: Tenant, count: int, sequences: int = 1) -> list[int]:
    """The tickets of `count` offers, each of which evicts others as the relay does."""
    taken = []
    for _ in range(count):
        for ticket in admission.select_evictions(tenant, sequences):
            admission.leave(ticket)
        verdict = admission.offer(tenant, sequences, 0)
        if not isinstance(verdict, Problem):
            taken.append(verdict[0])
    return taken


def test_a_queue_full_of_one_tenants_requests_has_room_for_another() -> None:
    admission = Admission(AdmissionLimits(max_running=1, max_queued=8))
    flood = tickets(admission, A, 20)
    assert len(flood) == 9
    assert admission.select_evictions(B, 1) == [flood[-1]], "the newest of the tenant with the most"
    assert len(tickets(admission, B, 20)) == 4, "half of the queue"
    assert admission.num_waiting == 8
    assert tickets(admission, A, 1) == []
    assert admission.select_evictions(Tenant("heavy", weight=10.0), 4) != []
    assert admission.select_evictions(Tenant("c", max_queued=1), 1) != []


def test_a_tenant_with_little_running_begins_more_although_another_fills_the_room() -> None:
    admission = Admission(AdmissionLimits(max_running=64))
    tickets(admission, A, 100)
    assert admission.num_running == 64
    begun = [admission.offer(B, 1, 0) for _ in range(6)]
    verdicts = [None if isinstance(verdict, Problem) else verdict[1] for verdict in begun]
    assert verdicts == 4 * [Verdict.ADMITTED] + 2 * [Verdict.QUEUED], "as many as it leaves of the spare part"
    assert admission.num_running == 68
    tickets(admission, Tenant("heavy", weight=4.0), 9)
    assert admission.num_running == 71, "its weight counts, and an eighth more is the most"


def test_who_is_over_its_own_quota_takes_nobodys_place() -> None:
    admission = Admission(AdmissionLimits(max_running=1, max_queued=4))
    small = Tenant("small", max_queued=1)
    tickets(admission, A, 9)
    assert len(tickets(admission, small, 9)) == 1
    assert admission.is_over_quota(small, 1)
    assert admission.select_evictions(small, 1) == []
    assert admission.select_evictions(B, 1) != []


def test_a_tenant_with_nothing_at_work_begins_although_others_fill_the_room() -> None:
    admission = Admission(AdmissionLimits(max_running=16, max_queued=64))
    tickets(admission, A, 40)
    verdicts = [admission.offer(tenant, 1, 0) for tenant in (B, B, Tenant("c"), Tenant("d"))]
    assert [verdict[1] for verdict in verdicts if not isinstance(verdict, Problem)] == [
        Verdict.ADMITTED, Verdict.QUEUED, Verdict.ADMITTED, Verdict.QUEUED,
    ]  # fmt: skip
    assert admission.num_running == 18, "an eighth more, and no further"


def test_small_requests_do_not_overtake_a_larger_one_of_a_tenant_with_less() -> None:
    admission = Admission(AdmissionLimits(max_running=4))
    flood = tickets(admission, A, 4)
    large = admission.offer(B, 4, 0)
    assert not isinstance(large, Problem)
    for ticket in flood[:3]:
        assert admission.leave(ticket) == []
        late = admission.offer(A, 1, 0)
        assert not isinstance(late, Problem)
        assert late[1] is Verdict.QUEUED, "there is room for one, but b waits for four and has none"
    assert admission.leave(flood[3])[0] == large[0]


def test_what_waits_for_its_own_tenants_quota_is_known() -> None:
    admission = Admission(AdmissionLimits(max_running=4))
    small = Tenant("small", max_running=2)
    mine = tickets(admission, small, 6)
    assert admission.waiting_for_quota() == set(mine[2:])
    assert admission.startable("small") == 0.0
    assert admission.quota_turns(small, 1) == 2.5, "five sequences are to end, two at a time"
    others = tickets(admission, A, 4)
    assert admission.waiting_for_quota() == set(mine[2:]), "others wait for room"
    assert (admission.startable("a"), admission.quota_turns(A, 1)) == (1.0, 0.0)
    admission.leave(mine[0])
    assert admission.waiting_for_quota() == set(mine[3:])
    for ticket in (*mine, *others):
        admission.leave(ticket)
    assert (admission._queues, admission.waiting_for_quota()) == ({}, set())
    assert (admission.startable("small"), admission.quota_turns(small, 1)) == (1.0, 0.0)


def test_a_request_larger_than_its_quota_waits_for_room_alone_while_nothing_of_its_tenant_runs() -> None:
    admission = Admission(AdmissionLimits(max_running=8, max_queued=100))
    flood = tickets(admission, A, 9)
    large, verdict = begun(admission.offer(Tenant("small", max_running=4), 32, 0.0, at_once=8))
    assert verdict is Verdict.QUEUED
    assert admission.waiting_for_quota() == set(), "it needs room, which other tenants have"
    assert admission.startable("small") == 8 / 32, "its first run"
    assert large in [begins for ticket in flood for begins in admission.leave(ticket)]
    assert admission.num_running == 8


def test_no_more_than_the_whole_queue_of_a_tenant_can_begin() -> None:
    admission = Admission(AdmissionLimits(max_running=2))
    tickets(admission, A, 3)
    tickets(admission, Tenant("small", max_running=8), 2)
    assert admission.startable("small") == 1.0, "its quota lets eight begin, and two wait"


def test_a_quota_lengthens_the_wait_by_what_is_queued_before_it_and_not_by_its_size() -> None:
    admission = Admission(AdmissionLimits(max_running=1_024, max_queued=400))
    small = Tenant("small", max_running=4)
    assert admission.retry_after_s(small) == 1, "nothing of it waits"
    tickets(admission, small, 4 + 8)
    assert admission.retry_after_s(small) == 1 + 4 * 8 // 4


def test_one_tenants_queue_does_not_lengthen_what_another_is_told_to_wait() -> None:
    admission = Admission(AdmissionLimits(max_running=4, max_queued=400))
    tickets(admission, A, 200)
    assert admission.retry_after_s(A) == 31
    assert admission.retry_after_s(B) == 1
    tickets(admission, B, 5)
    assert admission.retry_after_s(B) == 1 + 4 * (5 + 5) // 4, "as many of others go before its own"


def test_where_one_begins_at_a_time_tenants_take_turns_by_their_weights() -> None:
    admission = Admission(AdmissionLimits(max_running=1))
    heavy = Tenant("heavy", weight=2.0)
    running = tickets(admission, A, 9)[:1]
    tickets(admission, heavy, 9)
    tickets(admission, B, 1)
    names = []
    for _ in range(10):
        running = admission.leave(running[0])
        names.append(admission._owner[running[0]].tenant.name)
    assert names[:2] == ["heavy", "b"], "a had its turn before"
    assert Counter(names) == {"heavy": 6, "b": 1, "a": 3}


def begun(answer: tuple[int, Verdict] | Problem) -> tuple[int, Verdict]:
    assert not isinstance(answer, Problem)
    return answer


def test_sequences_that_cost_more_take_more_room_and_no_more_of_a_quota() -> None:
    admission = Admission(AdmissionLimits(max_running=64, max_queued=1_000))
    costly, plain = Tenant("costly", max_running=16), Tenant("plain")
    first, verdict = begun(admission.offer(costly, 8, 0.0, effort=6))
    assert verdict is Verdict.ADMITTED
    second, verdict = begun(admission.offer(costly, 6, 0.0, effort=6))
    assert verdict is Verdict.QUEUED, "48 of 64 are taken"
    assert admission.waiting_for_quota() == set(), "its quota would let it begin"
    assert begun(admission.offer(plain, 16, 0.0))[1] is Verdict.ADMITTED
    assert (admission.num_running, admission.num_waiting) == (24, 6)
    assert not admission.may_grow(first, 1)
    assert admission.set_running(first, 1) == [second], "its seven that ended made room for 42"
    assert admission.num_running == 23


def test_a_request_that_costs_more_than_the_room_begins_when_nothing_else_is_at_work() -> None:
    admission = Admission(AdmissionLimits(max_running=8, max_queued=100))
    large, verdict = begun(admission.offer(Tenant("a"), 4, 0.0, effort=6))
    assert verdict is Verdict.ADMITTED
    ticket, verdict = begun(admission.offer(Tenant("b"), 1, 0.0, effort=6))
    assert verdict is Verdict.QUEUED
    assert admission.leave(large) == [ticket]
    assert admission.leave(ticket) == []
    assert (admission.num_running, admission.num_waiting) == (0, 0)


def test_more_tenants_than_a_message_has_room_for_report_their_sequences_in_turn() -> None:
    admission = Admission(AdmissionLimits())
    for number in range(5):
        offered(admission, Tenant(f"t{number}", limits=TenantLimits(max_concurrent=4)))
    listed = [use.tenant for _ in range(5) for use in admission.sequence_uses(2)]
    assert sorted(listed) == sorted([f"t{number}" for number in range(5)] * 2)
