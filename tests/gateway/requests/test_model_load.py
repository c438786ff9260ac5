"""Tenants' loads of one model, and the work before a new request."""

from __future__ import annotations

import math
import random

import pytest

from baton_gateway.requests.model_load import ABOUT_S, LIGHT_SHARE, RECENT_S, ModelLoad, OwnCapacity
from baton_gateway.requests.tenant import Tenant
from baton_gateway.requests.tenant_load import TenantShare, WorkAhead, estimate_work_ahead
from baton_gateway.requests.wait_prediction import Work
from baton_gateway.workers.pool_load import PoolService

A, B, C = Tenant("a"), Tenant("b"), Tenant("c")
HEAVY = Tenant("heavy", weight=100.0)
ONE_WORKER = OwnCapacity(1.0, 0.0)
PREFILL, FREE = PoolService(0.0, 1_000.0), PoolService(is_limiting=False)


def all_may_start(name: str) -> float:
    return 1.0


def prompt_tokens_ahead(load: ModelLoad, tenant: Tenant, newcomer: float = 10.0, at_workers: float = 0.0) -> WorkAhead:
    prefill = PoolService(at_workers, 1_000.0)
    return load.work_ahead(tenant, Work(newcomer, 0.0), prefill, FREE, all_may_start)[0]


def filled(*requests: tuple[Tenant, float]) -> ModelLoad:
    load = ModelLoad()
    for ticket, (tenant, tokens) in enumerate(requests, 1):
        load.add(ticket, Work(tokens, 1.0), tenant, is_queued=False)
    return load


def test_the_line_counts_who_is_in_it_and_learns_how_long_answers_are() -> None:
    load = ModelLoad()
    load.add(1, Work(10, 20))
    load.add(2, Work(1, 2))
    load.mark_sent(1)
    load.mark_sent(1)
    assert (load.held, len(load)) == (Work(1, 2), 1)
    load.remove(2, 0.0)
    assert (load.held, len(load)) == (Work(), 0)
    load.record_output(40)
    assert load.output_tokens == 40
    for _ in range(200):
        load.record_output(10)
    assert math.isclose(load.output_tokens, 10, abs_tol=0.01)


def test_a_prompt_counts_by_the_tokens_that_are_to_be_computed_once_these_are_known() -> None:
    """24 turns of sessions that wait: each has 26,000 tokens, of which a worker has all but 1,700."""
    load = filled(*((A, 26_000.0) for _ in range(24)))
    assert load.held.prompt_tokens == 24 * 26_000
    for ticket in range(1, 25):
        load.set_prompt_tokens(ticket, 1_700)
    assert load.held == Work(24 * 1_700, 24)
    load.mark_sent(1)
    owner = load.tenant(A.name)
    assert owner is not None
    assert owner.sent_tokens == 1_700
    load.set_prompt_tokens(1, 5)
    load.set_prompt_tokens(99, 5)
    assert owner.sent_tokens == 1_700, "what was sent stays as it was counted"
    for ticket in range(1, 25):
        load.mark_answered(ticket)
        load.remove(ticket, 0.0)
    assert (load.held, load.num_tenants) == (Work(), 0)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_way_requests_take_a_tenant_without_any_is_forgotten(seed: int) -> None:
    dice, load, inside = random.Random(seed), ModelLoad(), set[int]()
    for ticket in range(400):
        load.add(ticket, Work(dice.random(), dice.random()), dice.choice((A, B, C, HEAVY)), now=float(ticket))
        inside.add(ticket)
        for known in dice.sample(sorted(inside), min(3, len(inside))):
            match dice.randrange(6):
                case 0:
                    load.admit(known, float(ticket))
                case 1:
                    load.mark_sent(known)
                case 2:
                    load.mark_answered(known)
                case 3:
                    load.set_running(known, dice.randrange(4), float(ticket))
                case _:
                    load.remove(known, float(ticket))
                    inside.discard(known)
        waiting = [load.tenant(tenant.name) for tenant in (A, B, C, HEAVY)]
        assert sum(work.requests for work in waiting if work) == len(inside)
        assert sum(work.waiting for work in waiting if work) == len(load)
    for ticket in sorted(inside):
        load.remove(ticket, 400.0)
    assert (load.num_tenants, len(load), load.held) == (0, 0, Work())


def test_ahead_of_a_newcomer_are_its_own_line_and_of_others_as_much_for_their_weight_as_it_has_and_brings() -> None:
    own, flood = TenantShare(1.0, 30.0), TenantShare(1.0, 1_000.0)
    assert estimate_work_ahead(own, [flood], 10.0) == WorkAhead(waiting=70.0, fair=70.0, own=30.0, crowd=20.0)
    assert estimate_work_ahead(TenantShare(1.0, 0.0), [flood], 10.0) == WorkAhead(10.0, 10.0, 0.0, 10.0)
    assert estimate_work_ahead(own, [TenantShare(1.0, 5.0), TenantShare(1.0, 2.0)], 10.0).waiting == 37.0, (
        "never more than others have"
    )
    assert estimate_work_ahead(TenantShare(100.0, 0.0), [flood], 10.0).waiting == pytest.approx(0.1), (
        "its weight is a hundred of theirs"
    )
    assert estimate_work_ahead(TenantShare(1.0, 0.0), [TenantShare(4.0, 1_000.0)], 10.0).waiting == 40.0


def test_what_others_have_at_the_workers_refuses_nobody_beyond_their_share() -> None:
    busy = TenantShare(1.0, waiting=0.0, sent=5_000.0)
    assert estimate_work_ahead(TenantShare(1.0, 0.0), [busy], 10.0) == WorkAhead(
        waiting=0.0, fair=10.0, own=0.0, crowd=10.0
    )
    assert estimate_work_ahead(TenantShare(1.0, 0.0, sent=20.0), [busy], 10.0).fair == 50.0
    assert estimate_work_ahead(TenantShare(1.0, 0.0), [], 10.0, unknown=5_000.0).fair == 10.0, (
        "other processes' count as one tenant's"
    )


def test_a_flood_is_a_crowd_to_nobody_and_many_tenants_are_one_to_all() -> None:
    flood = filled(*((A, 100.0) for _ in range(50)))
    assert prompt_tokens_ahead(flood, A, 100.0).fair == 5_000.0
    assert prompt_tokens_ahead(flood, A, 100.0).crowd == 100.0
    assert prompt_tokens_ahead(flood, B, 100.0) == WorkAhead(100.0, 100.0, 0.0, 100.0)
    crowd = filled(*((Tenant(f"t{number}"), 100.0) for number in range(50)))
    assert prompt_tokens_ahead(crowd, B, 100.0) == WorkAhead(5_000.0, 5_000.0, 0.0, 5_000.0)
    assert prompt_tokens_ahead(crowd, B, 1.0).crowd == pytest.approx(5_000.0), "turns are for whole requests"


def test_one_tenants_huge_prompts_do_not_make_a_small_request_wait_for_a_whole_one() -> None:
    load = filled((A, 60_000.0), (A, 60_000.0), (C, 10.0))
    assert prompt_tokens_ahead(load, B, 10.0).fair == 20.0


def test_what_waits_for_its_own_tenants_quota_is_ahead_of_nobody() -> None:
    load, small = ModelLoad(), Tenant("small", max_running=2)
    for ticket in range(10):
        load.add(ticket, Work(100.0, 1.0), small)
    load.add(10, Work(100.0, 1.0), A)

    def fifth(name: str) -> float:
        return 0.2 if name == small.name else 1.0

    prompts, _ = load.work_ahead(B, Work(1_000.0, 0.0), PREFILL, FREE, fifth)
    assert prompts.waiting == pytest.approx(300.0)
    assert load.work_ahead(small, Work(1_000.0, 0.0), PREFILL, FREE, fifth)[0].waiting == pytest.approx(300.0)


def test_tokens_at_the_workers_belong_to_whoever_was_sent() -> None:
    load = filled((A, 300.0), (B, 100.0))
    load.mark_sent(1)
    load.mark_sent(2)
    assert prompt_tokens_ahead(load, C, 1_000.0, at_workers=200.0).fair == 200.0
    assert prompt_tokens_ahead(load, C, 60.0, at_workers=200.0).fair == 110.0, "150 of a's and 50 of b's"
    load.mark_answered(1)
    assert prompt_tokens_ahead(load, C, 60.0, at_workers=50.0).fair == 50.0


def test_a_tenant_that_takes_little_is_light_and_comes_back_to_it() -> None:
    load, light_s = filled((A, 0.0), (HEAVY, 0.0)), LIGHT_SHARE * RECENT_S
    load.record_prefill(A, light_s, 100, 0.0)
    assert load.lead("a", ONE_WORKER, 0.0) == 0.0
    load.record_prefill(A, 3.0, 100, 0.0)
    assert load.lead("a", ONE_WORKER, 0.0) == pytest.approx((light_s + 3.0) / RECENT_S)
    assert load.lead("a", OwnCapacity(4.0, 0.0), 0.0) == 0.0, "more workers, a smaller part"
    assert load.lead("a", ONE_WORKER, 3 * RECENT_S) == 0.0
    load.record_prefill(HEAVY, 300.0, 100, 0.0)
    assert load.lead("heavy", ONE_WORKER, 0.0) == pytest.approx(3.0 / RECENT_S), "for its weight"
    assert load.lead("nobody", ONE_WORKER, 0.0) == 0.0


def test_a_tenant_that_brings_much_at_once_is_not_light_before_anything_of_it_was_sent() -> None:
    load = filled(*((A, 100.0) for _ in range(50)), (B, 100.0))
    assert load.lead("a", ONE_WORKER, 0.0) == 0.0, "the time per token is unknown"
    load.record_prefill(C, 0.1, 100, 0.0)
    assert 0.0 < load.lead("a", ONE_WORKER, 0.0) < 0.01, "and what waits is no reason to go later than others"
    assert load.lead("b", ONE_WORKER, 0.0) == 0.0


def test_what_was_sent_of_tenants_that_left_is_forgotten() -> None:
    load = ModelLoad()
    for number in range(1_000):
        load.add(number, Work(), Tenant(f"t{number}"), is_queued=False)
        load.record_prefill(Tenant(f"t{number}"), 1.0, 100, float(number))
        load.remove(number, float(number))
    assert len(load._sent) < 2 * RECENT_S


def test_a_model_is_shared_while_another_tenant_asked_within_a_minute() -> None:
    load = ModelLoad()
    load.add(1, Work(), A, now=0.0)
    assert not load.is_shared("a", 0.0)
    assert load.is_shared("b", 0.0)
    load.add(2, Work(), B, now=10.0)
    assert load.is_shared("a", 10.0 + ABOUT_S)
    for ticket in range(3, 9):
        load.add(ticket, Work(), A, now=20.0)
    assert load.is_shared("a", 10.0 + ABOUT_S)
    assert not load.is_shared("a", 11.0 + ABOUT_S)


def test_how_long_requests_are_at_work_is_learned_of_those_that_ended() -> None:
    load = ModelLoad()
    load.add(9, Work(), A)
    for ticket, (began_s, ended_s) in enumerate([(1.0, 5.0), (2.0, 10.0)]):
        load.add(ticket, Work(), A)
        load.admit(ticket, began_s)
        load.mark_sent(ticket)
        load.remove(ticket, ended_s)
    load.add(10, Work(), A)
    load.remove(9, 99.0)  # it never began
    work = load.tenant("a")
    assert work is not None
    assert work.mean_s == pytest.approx(0.95 * 4.0 + 0.05 * 8.0)


def test_a_tenant_that_takes_many_slots_is_not_light_however_short_its_prompts_are() -> None:
    load, capacity = ModelLoad(), OwnCapacity(1.0, 64.0)
    for ticket, tenant in enumerate((A, HEAVY)):
        load.add(ticket, Work(), tenant, is_queued=False)
        load.mark_sent(ticket)
    load.set_running(0, 8, 0.0)
    load.set_running(1, 8, 0.0)
    assert load.lead("a", capacity, 0.0) == 0.0, "an eighth of the slots, and only now"
    assert load.lead("a", capacity, 5 * RECENT_S) == 0.0
    load.set_running(0, 32, 5 * RECENT_S)
    load.set_running(1, 32, 5 * RECENT_S)
    assert load.lead("a", capacity, 10 * RECENT_S) == pytest.approx(0.5, rel=0.02), "half of the slots"
    assert load.lead("heavy", capacity, 10 * RECENT_S) == pytest.approx(0.005, rel=0.02), "for its weight"
    load.set_running(0, 0, 10 * RECENT_S)
    assert 0.0 < load.lead("a", capacity, 10 * RECENT_S) < 0.5, "what it had lately counts for a while"
    assert load.lead("a", capacity, 20 * RECENT_S) == 0.0


def test_a_tenant_whose_requests_wait_for_slots_is_not_light() -> None:
    load = filled(*((A, 0.0) for _ in range(9)), (B, 0.0))
    assert load.lead("a", OwnCapacity(1.0, 64.0), 0.0) > 0.0 == load.lead("b", OwnCapacity(1.0, 64.0), 0.0)
    assert load.lead("a", ONE_WORKER, 0.0) == 0.0, "a model that only encodes has no slots"


def test_weights_are_compared_with_those_of_tenants_that_ask() -> None:
    load = ModelLoad()
    load.add(1, Work(), A)
    assert load.relative_weight("a") == 1.0
    load.add(2, Work(), Tenant("b", weight=3.0))
    assert (load.relative_weight("a"), load.relative_weight("b"), load.relative_weight("nobody")) == (0.5, 1.5, 1.0)


def test_slots_count_only_while_most_of_them_were_taken_lately() -> None:
    load = filled((A, 0.0), (B, 0.0))
    tickets = list(load._entries)
    load.set_running(tickets[0], 60, 0.0)
    assert load.capacity(1.0, 64.0, 1.0) == ONE_WORKER, "not for long"
    assert load.capacity(1.0, 64.0, RECENT_S) == OwnCapacity(1.0, 64.0)
    load.set_running(tickets[0], 0, RECENT_S)
    assert load.capacity(1.0, 64.0, RECENT_S) == OwnCapacity(1.0, 64.0), "a lump of answers that end together"
    assert load.capacity(1.0, 64.0, 2 * RECENT_S) == ONE_WORKER
