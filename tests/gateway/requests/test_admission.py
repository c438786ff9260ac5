"""Whose turn it is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from baton_gateway.errors import Problem
from baton_gateway.http_api.tenants import DEFAULT_TENANT, Tenant, Tenants
from baton_gateway.requests.admission import Admission, AdmissionLimits, Verdict

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
    assert [each if isinstance(each, Problem) else each[1] for each in verdicts][:3] == [
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
    assert large[1] is Verdict.QUEUED, "16 at once beside one is over the quota of 8"
    assert admission.num_waiting == 1024
    assert admission.leave(one) == [large[0]]
    assert (admission.num_running, admission.num_waiting) == (16, 0)
    assert not admission.may_grow(large[0], 16)
    waits = admission.offer(small, 1, 0)
    assert not isinstance(waits, Problem)
    assert waits[1] is Verdict.QUEUED
    assert admission.at_work(large[0], 7) == [waits[0]], "as its sequences end, others begin"
    assert admission.num_running == 8


def test_many_sequences_of_one_request_do_not_keep_another_tenant_out() -> None:
    admission = Admission(AdmissionLimits(max_running=64, max_queued=8))
    large = admission.offer(A, 1024, 0, at_once=16)
    assert not isinstance(large, Problem)
    admission.at_work(large[0], 48)
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
