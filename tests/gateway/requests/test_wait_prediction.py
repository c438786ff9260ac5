"""The predicted wait of a new request, and its bound."""

from __future__ import annotations

import pytest

from baton_gateway.requests.wait_prediction import WaitBound, WaitRules, Work, predict_wait_s, retry_after_s
from baton_gateway.workers.pool_load import PoolService, decode_wait_s, is_full, pool_services
from baton_gateway.workers.worker_view import WorkerView
from baton_wire.messages.values import Role

TARGET_S = 0.5
RULES = WaitRules(TARGET_S)


def prefill(tokens: float = 0.0, rate: float | None = 1000.0) -> PoolService:
    return PoolService(tokens, rate)


FREE = PoolService(is_limiting=False)


@pytest.mark.parametrize(
    ("held", "there", "then", "wait_s"),
    [
        (Work(), prefill(), FREE, 0.0),
        (Work(500, 9e9), prefill(500), FREE, 1.0),
        (Work(500, 300), prefill(), PoolService(100, 100), 4.0),
        (Work(), prefill(rate=None), FREE, 0.0),
        (Work(1, 1), prefill(rate=None), FREE, None),
        (Work(1, 1), prefill(), PoolService(1, None), None),
    ],
    ids=["idle", "prompts", "answers", "nothing waits", "prompts unknown", "answers unknown"],
)
def test_the_wait_is_tokens_by_rate_of_the_slower_pool_and_unknown_is_not_zero(
    held: Work, there: PoolService, then: PoolService, wait_s: float | None
) -> None:
    assert predict_wait_s(held, there, then) == wait_s


def test_a_burst_may_wait_ten_targets_and_a_line_that_stands_only_for_who_is_in_time() -> None:
    bound = WaitBound()
    assert bound.of(4.0, 0.01, RULES, 0.0) == 5.0
    assert bound.of(4.9, 0.01, RULES, 0.4) == 5.0
    assert bound.of(4.0, 0.01, RULES, 0.6) == 0.25
    assert bound.of(0.2, 0.01, RULES, 0.7) == 0.25, "a look below the bound does not make the line young again"
    assert bound.of(0.3, 0.01, RULES, 0.8) == 0.25
    assert bound.of(0.2, 0.01, RULES, 1.4) == 5.0, "no request was late for longer than the target"
    assert bound.of(4.0, 0.01, RULES, 1.5) == 5.0


def test_a_setting_is_kept_and_a_target_out_of_reach_refuses_nobody_early() -> None:
    bound, slow_s = WaitBound(), 2.0
    for now in (0.0, 0.4, 0.8, 1.2):
        assert bound.of(9.0, slow_s, RULES, now) == 20.0, "ten times its own work"
        assert bound.of(9.0, slow_s, WaitRules(TARGET_S, 0.1), now) == 0.1
        assert bound.of(9.0, 0.01, WaitRules(TARGET_S, 60.0), now) == 60.0


def test_a_standing_queue_lets_long_prompts_wait_by_their_own_time_and_no_short_one_longer() -> None:
    bound, rules = WaitBound(), WaitRules(ttft_s=2.0)
    for now in (0.0, 1.0, 2.0):
        bound.of(8.0, 0.01, rules, now)
    assert bound.of(8.0, 0.01, rules, 2.1) == 1.0
    assert bound.of(8.0, 0.5, rules, 2.1) == 1.0
    assert bound.of(8.0, 0.8, rules, 2.1) == 8.0, "a first prompt of 24,000 tokens, or its session's later ones"
    assert bound.of(8.0, 0.8, WaitRules(2.0, 1.5), 2.1) == 1.5, "a setting holds for all"


def test_clients_come_again_when_the_wait_has_fallen() -> None:
    assert [retry_after_s(wait_s, 0.25) for wait_s in (0.3, 3.0, 900.0)] == [1, 3, 60]


def worker(role: Role, **fields: object) -> WorkerView:
    values: dict[str, object] = {
        "epoch": b"x",
        "role": role,
        "served_name": "m",
        "fingerprint": "f",
        "pair_address": None,
    }
    values |= {"max_context_tokens": 9, "max_choices": 9, "block_tokens": 9, "blocks_total": 9, "blocks_free": 9}
    return WorkerView(**(values | fields))  # type: ignore[arg-type]


def test_rates_are_those_that_the_workers_of_the_model_measured() -> None:
    pool = [
        worker(Role.PREFILL, load_tokens=300, more_token_s=0.001),
        worker(Role.PREFILL, load_tokens=100, more_token_s=0.002),
        worker(Role.PREFILL, load_tokens=100),
        worker(Role.PREFILL, served_name="other", load_tokens=999, more_token_s=1.0),
        worker(Role.DECODE, running=100, step_s=0.05, waiting=40),
    ]
    prefill, decode = pool_services(pool, "m", 10.0)
    assert prefill.waiting_tokens == 500
    assert prefill.tokens_per_s == pytest.approx(1000 + 500 + 1 / 0.0015)
    assert (decode.waiting_tokens, decode.tokens_per_s, decode.is_limiting) == (400, 2000, True)
    pool.append(worker(Role.DECODE, running=1, step_s=0.05))
    assert not pool_services(pool, "m", 10.0)[1].is_limiting, "one has slots left"
    assert pool_services([worker(Role.PREFILL, load_tokens=5)], "m", 10.0)[0].tokens_per_s is None


@pytest.mark.parametrize("endless", [10_000_000, (1 << 31) - 1])
def test_a_worker_that_says_that_endless_work_waits_there_delays_no_request(endless: int) -> None:
    """The worker is stuck, or lies: nothing is sent to it while others have less."""
    good = [
        worker(Role.PREFILL, load_tokens=300, more_token_s=0.001),
        worker(Role.DECODE, running=100, step_s=0.05, waiting=40),
    ]
    lies = [worker(Role.PREFILL, load_tokens=endless), worker(Role.DECODE, running=1, step_s=0.05, waiting=endless)]
    assert pool_services([*good, *lies], "m", 10.0) == pool_services(good, "m", 10.0)


def test_workers_whose_queues_differ_as_queues_do_all_count() -> None:
    pool = [worker(Role.PREFILL, load_tokens=tokens, more_token_s=0.001) for tokens in (0, 4_000)]
    prefill, _ = pool_services(pool, "m", 10.0)
    assert (prefill.waiting_tokens, prefill.tokens_per_s) == (4_000, 2_000)


@pytest.mark.parametrize(("waiting", "full"), [(0, False), (20, False), (400, True)])
def test_decode_workers_are_full_when_what_waits_is_work_for_half_a_second(waiting: int, full: bool) -> None:
    pool = [worker(Role.DECODE, running=100, step_s=0.05, waiting=waiting)]
    assert is_full(pool, "f", 10.0) is full  # type: ignore[arg-type]


def test_what_is_sent_beyond_the_slots_waits_before_any_report_says_so() -> None:
    burst = worker(Role.DECODE, load_sequences=150, waiting=86, max_sequences=64, step_s=0.02)
    assert decode_wait_s(burst, 100.0) == pytest.approx(86 * 100 * 0.02 / 64)
    blocked = worker(Role.DECODE, load_sequences=5, waiting=5, max_sequences=64, step_s=0.02)
    assert decode_wait_s(blocked, 100.0) == 0.0, "nothing runs, so it is unknown"
