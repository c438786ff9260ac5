"""Each baseline rule on cases worked out by hand from its publication."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_simulate.baselines import apa, dynamo, hpa, kpa, llmd, plain
from baton_simulate.baselines.signals import PoolSignals, Signals
from baton_testing.sizing.builders import ROUND_WORKER, spec
from baton_wire.messages.values import Role

POOL = PoolSignals(workers=4, ready=4, running=8.0, queued=0.0, kv_use=0.5, kv_tokens=200_000.0, queued_tokens=0.0)


def signals(**changes: float) -> Signals:
    pool = replace(POOL, **changes)  # type: ignore[arg-type]
    return Signals(pool, pool, arrivals_per_s=10.0, mean_prompt=1000.0, mean_uncached=1000.0, mean_output=100.0)


@pytest.mark.parametrize(
    ("ready", "per_worker", "target", "wanted"),
    [(4, 20.0, 10.0, 8), (4, 10.9, 10.0, 4), (4, 11.1, 10.0, 5), (4, 2.0, 10.0, 1), (3, 15.0, 10.0, 5)],
)
def test_hpa_scales_by_the_ratio_outside_ten_percent(ready: int, per_worker: float, target: float, wanted: int) -> None:
    assert hpa.proposal(ready, ready, per_worker, target) == wanted


def test_hpa_grows_by_the_larger_of_four_and_double_and_shrinks_to_the_most_of_five_minutes() -> None:
    rule = hpa.Hpa(spec(maximum=64), {Role.PREFILL: 1.0, Role.DECODE: 1.0})
    assert rule.decide(signals(running=400.0), 0.0) == {Role.PREFILL: 8, Role.DECODE: 8}
    calm = signals(running=2.0)
    assert rule.decide(calm, 290.0) == {Role.PREFILL: 4, Role.DECODE: 4}
    sizes = rule.decide(calm, 600.0)
    assert sizes == {Role.PREFILL: 2, Role.DECODE: 2}
    assert rule.decide(None, 700.0) is None, "lost metrics change nothing"


def test_hpa_on_kv_use_sizes_decode_by_it() -> None:
    rule = hpa.Hpa(spec(), {Role.PREFILL: 2.0, Role.DECODE: 2.0}, kv_target=0.25)
    assert rule.decide(signals(), 0.0) == {Role.PREFILL: 4, Role.DECODE: 8}


@pytest.mark.parametrize(
    ("stable", "panic", "ready", "answer"),
    [
        (14.0, 14.0, 2, (2, 2, False)),
        (14.0, 28.0, 2, (2, 4, True)),
        (0.0, 0.0, 4, (2, 2, False)),
        (7.1, 7.1, 1, (2, 2, True)),
    ],
)
def test_kpa_counts_by_both_windows(stable: float, panic: float, ready: int, answer: tuple[int, int, bool]) -> None:
    assert kpa.counts(stable, panic, ready, 7.0) == answer


def test_kpa_never_shrinks_in_panic() -> None:
    rule = kpa.Kpa(spec(maximum=64), {Role.PREFILL: 10.0, Role.DECODE: 10.0})
    assert rule.decide(signals(running=70.0), 0.0) == {Role.PREFILL: 10, Role.DECODE: 10}
    for at in range(2, 60, 2):
        sizes = rule.decide(signals(running=7.0), float(at))
        assert sizes is not None
        assert sizes[Role.DECODE] == 10
    assert rule.decide(signals(running=7.0), 80.0) == {Role.PREFILL: 2, Role.DECODE: 2}


@pytest.mark.parametrize(
    ("workers", "use", "wanted"), [(4, 0.54, 4), (4, 0.6, 5), (4, 2.0, 8), (4, 0.46, 4), (4, 0.3, 3), (8, 0.05, 4)]
)
def test_apa_has_two_tolerances_and_two_rates(workers: int, use: float, wanted: int) -> None:
    assert apa.target_replicas(workers, use, 0.5) == wanted


def test_apa_shrinks_to_the_most_of_five_minutes() -> None:
    rule = apa.Apa(spec(maximum=64), 2.0, 0.5)
    assert rule.decide(signals(), 0.0) == {Role.PREFILL: 4, Role.DECODE: 4}
    calm = signals(running=1.0, kv_use=0.1)
    for at in range(10, 300, 10):
        assert rule.decide(calm, float(at)) == {Role.PREFILL: 4, Role.DECODE: 4}
    assert rule.decide(calm, 340.0) == {Role.PREFILL: 2, Role.DECODE: 2}


def test_llmd_v2_takes_what_its_steps_can_renew_before_a_queue_was_seen() -> None:
    model = replace(ROUND_WORKER, max_step_tokens=2200, max_sequences=64)
    assert llmd.first_supply(model, 1000.0, 100.0) == pytest.approx(64 * 1050.0), "200 by steps"
    assert llmd.first_supply(model, 1099.0, 1.0) == pytest.approx(2.0 * 1099.5)


@pytest.mark.parametrize(
    ("workers", "ready", "kv_use", "queue", "wanted"),
    [
        (3, 3, 0.75, 0.0, 4),
        (3, 3, 0.40, 2.5, 4),
        (3, 2, 0.75, 0.0, 3),
        (3, 3, 0.40, 1.0, 2),
        (2, 2, 0.40, 0.0, 2),
        (1, 1, 0.0, 0.0, 1),
    ],
)
def test_llmd_v1_moves_by_one_on_spare_capacity(
    workers: int, ready: int, kv_use: float, queue: float, wanted: int
) -> None:
    assert llmd.saturation_v1(workers, ready, kv_use, queue) == wanted


@pytest.mark.parametrize(("workers", "demand", "wanted"), [(2, 170.0, 2), (2, 340.0, 4), (4, 140.0, 2), (4, 280.0, 4)])
def test_llmd_v2_counts_tokens_against_supply(workers: int, demand: float, wanted: int) -> None:
    assert llmd.saturation_v2(workers, demand, 100.0) == wanted


def test_llmd_reads_lost_metrics_as_zero() -> None:
    rule = llmd.LlmdV1(spec())
    rule.decide(signals(), 0.0)
    for at in range(30, 900, 30):
        sizes = rule.decide(None, float(at))
    assert sizes is not None
    assert sizes[Role.DECODE] < 4


def test_dynamo_finds_the_best_batch_that_meets_the_mean_target() -> None:
    # one prompt of 500 takes 0.06 s, two 0.11 s, four 0.21 s: 4 / 0.21 is the best rate within 0.22 s
    assert dynamo.prefill_rate(ROUND_WORKER, 500.0, 500.0, 0.22) == pytest.approx(4 / 0.21)
    assert dynamo.prefill_rate(ROUND_WORKER, 500.0, 500.0, 0.12) == pytest.approx(2 / 0.11)
    assert dynamo.prefill_rate(ROUND_WORKER, 500.0, 500.0, 0.01) == pytest.approx(4 / 0.21), "best ineligible"


def test_dynamo_moves_by_one_and_waits_for_what_is_starting() -> None:
    rule = dynamo.Dynamo(spec(), ROUND_WORKER)
    hot = signals(running=240.0, queued_tokens=40_000.0)
    assert rule.decide(hot, 5.0) == {Role.PREFILL: 5, Role.DECODE: 4}
    assert rule.decide(replace(hot, prefill=replace(hot.prefill, ready=3)), 10.0) == {Role.PREFILL: 4, Role.DECODE: 4}
    assert rule.decide(None, 15.0) is None


def test_dynamo_shrinks_when_every_evaluation_of_three_minutes_says_so() -> None:
    rule = dynamo.Dynamo(spec(), ROUND_WORKER, next_throughput_s=1e9)
    calm, hot = signals(running=4.0, kv_tokens=4000.0), signals(running=240.0, queued_tokens=40_000.0)
    for at in range(5, 185, 5):
        assert rule.decide(calm, float(at)) == {Role.PREFILL: 4, Role.DECODE: 4}
    assert rule.decide(calm, 185.0) == {Role.PREFILL: 3, Role.DECODE: 3}
    for at in range(190, 300, 5):
        rule.decide(calm, float(at))
    rule.decide(hot, 300.0)
    assert rule.decide(calm, 370.0) == {Role.PREFILL: 4, Role.DECODE: 4}, "watched anew"


def test_the_plain_rule_counts_prompt_seconds_and_decode_rate_and_keeps_the_most_of_its_window() -> None:
    rule = plain.Plain(spec(maximum=64), ROUND_WORKER, held_s=60.0)
    # 60 req/s of 0.1 s each: 6 / 0.6. A decode worker: 64 sequences of 1,050 tokens in 0.02312 s a step.
    busy = replace(signals(), arrivals_per_s=60.0)
    assert rule.decide(busy, 0.0) == {Role.PREFILL: 10, Role.DECODE: 3}
    assert rule.decide(replace(busy, arrivals_per_s=10.0), 30.0) == {Role.PREFILL: 10, Role.DECODE: 3}
    assert rule.decide(replace(busy, arrivals_per_s=10.0), 60.0) == {Role.PREFILL: 2, Role.DECODE: 1}
    assert rule.decide(None, 70.0) is None, "lost metrics change nothing"


def test_the_plain_rule_adds_what_takes_a_backlog_away_within_a_minute() -> None:
    rule = plain.Plain(spec(maximum=64), ROUND_WORKER)
    waits = signals()
    waits = replace(waits, prefill=replace(waits.prefill, queued_tokens=1_220_000.0))
    assert rule.decide(waits, 0.0) == {Role.PREFILL: 5, Role.DECODE: 1}, "(1 + (122 - 4 * 0.5) / 60) / 0.6"


def test_a_knob_changes_a_rule_and_who_has_none_refuses_it() -> None:
    assert llmd.saturation_v1(3, 3, 0.40, 2.5, 8.0) == 2
    assert llmd.saturation_v1(3, 3, 0.40, 2.5) == 4
