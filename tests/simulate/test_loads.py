"""The loads of the development and the test set: apart, the same for the same seed, in the shape that they claim."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.sizing.generators import (
    bells,
    clients,
    contagious,
    documents,
    drifting,
    essays_and_papers,
    flash_crowds,
    growing_desks,
    jobs,
    levels,
    office_days,
    on_off,
    sessions,
    shifts,
    swaying,
    turns,
    wandering,
    waves,
    with_batches,
)
from bench.sizing.judging_generators import day_and_batches, failovers, lessons, match, thinking, translations
from bench.sizing.later_generators import agents, contracts, rollout, self_similar, shop_days, timers
from bench.sizing.latest_generators import archives, interviews, mailings, outages, relays, studios
from bench.sizing.loads import DEVELOPMENT, SPLITS

from baton_control.sizing.inputs.workload import Workload


def test_no_load_stands_in_two_sets() -> None:
    names = [load.name for loads in SPLITS.values() for load in loads]
    assert len(names) == len(set(names))


def test_the_same_seed_gives_the_same_load_and_another_gives_another() -> None:
    loads = [on_off(np.random.default_rng(seed), 3.0, 10.0, 0.2) for seed in (1, 1, 2)]
    assert loads[0].arrival_s.tolist() == loads[1].arrival_s.tolist()
    assert loads[0].arrival_s.tolist() != loads[2].arrival_s.tolist()


def _rate(load: Workload, start_s: float, end_s: float) -> float:
    return len(load.between(start_s, end_s)) / (end_s - start_s)


def test_turns_change_rate_and_lengths() -> None:
    load = turns(np.random.default_rng(1), seconds=100.0, count=4)
    chat, code = load.between(10, 90), load.between(110, 190)
    assert _rate(load, 10, 90) > 2 * _rate(load, 110, 190)
    assert np.median(code.prompt_tokens) > 4 * np.median(chat.prompt_tokens)


def test_clients_are_burstier_than_chance_and_follow_the_tide() -> None:
    load = clients(np.random.default_rng(1), 10.0, 6.0, tide=0.7)
    counts = np.histogram(load.between(0, 1200).arrival_s, np.arange(0, 1201, 10))[0]
    assert counts.var() / counts.mean() > 1.5
    ebb, flood = _rate(load, 0, 1800), _rate(load, 2.5 * 3600, 3.5 * 3600)
    assert flood > 2 * ebb


def test_a_load_without_its_trace_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DEVELOPMENT[0].case(tmp_path, 1)


def test_turns_of_a_session_hold_what_was_said_before() -> None:
    load = sessions(np.random.default_rng(3), 1.0, 0.5)
    assert np.all(load.cached_tokens < load.prompt_tokens)
    assert 0.5 < load.cached_tokens.sum() / load.prompt_tokens.sum() < 0.95


def test_a_crowd_comes_at_once_and_goes_slowly() -> None:
    load = flash_crowds(np.random.default_rng(3), 4.0, 4.0, 1.0)
    rates = np.array([_rate(load, start, start + 60.0) for start in range(0, 3540, 60)])
    top = int(rates.argmax())
    assert rates.max() > 2.5 * np.median(rates)
    assert rates[top + 3] > 1.5 * np.percentile(rates, 10)


def test_a_batch_is_a_clump_in_calm_chat() -> None:
    load = with_batches(np.random.default_rng(3), 4.0, 60, 1.0)
    counts = np.histogram(load.arrival_s, np.arange(0.0, 3600.0, 5.0))[0]
    assert np.sum(counts > 50) >= 5
    assert np.median(counts) == pytest.approx(20, abs=4)


def test_a_wandering_rate_has_a_long_memory() -> None:
    load = wandering(np.random.default_rng(3), 6.0, 1.0)
    counts = np.histogram(load.arrival_s, np.arange(0.0, 3600.0, 60.0))[0]
    assert np.corrcoef(counts[:-1], counts[1:])[0, 1] > 0.5


def test_essays_need_decode_and_papers_need_prefill() -> None:
    load = essays_and_papers(np.random.default_rng(3), seconds=100.0, count=2)
    essays, papers = load.between(0, 100), load.between(110, 200)
    assert np.median(essays.output_tokens) > 10 * np.median(papers.output_tokens)
    assert np.median(papers.prompt_tokens) > 8 * np.median(essays.prompt_tokens)


def test_shifts_of_three_kinds_fill_their_time_with_turns() -> None:
    load = shifts(np.random.default_rng(3), 1.0)
    medians = [np.median(load.between(start, start + 60.0).prompt_tokens) for start in range(0, 3540, 60)]
    assert max(medians) > 8 * min(medians)
    assert load.duration_s == pytest.approx(3600.0, abs=10)


def test_office_days_repeat() -> None:
    load = office_days(np.random.default_rng(3), 1.0, 2.0)
    day, night = _rate(load, 10 * 3600, 16 * 3600), _rate(load, 0, 6 * 3600)
    assert day > 5 * night
    assert _rate(load, 34 * 3600, 40 * 3600) == pytest.approx(day, rel=0.5)


def test_waves_come_with_their_period() -> None:
    load = waves(np.random.default_rng(3), 2.0, 10.0, 480.0, 150.0, 1.5)
    counts = np.histogram(load.arrival_s, np.arange(0.0, 5400.0, 60.0))[0].astype(float)
    counts -= counts.mean()
    by_lag = [float(np.mean(counts[lag:] * counts[:-lag])) for lag in range(3, 12)]
    assert int(np.argmax(by_lag)) + 3 == 8


def test_contagious_requests_are_far_burstier_than_chance() -> None:
    load = contagious(np.random.default_rng(3), 6.0, 1.0)
    assert _rate(load, 300, 3600) == pytest.approx(6.0, rel=0.25)
    counts = np.histogram(load.arrival_s, np.arange(0.0, 3600.0, 30.0))[0]
    assert counts.var() / counts.mean() > 2.5


def test_levels_stay_for_minutes() -> None:
    load = levels(np.random.default_rng(3), 2.0, 11.0, 4.0)
    counts = np.histogram(load.arrival_s, np.arange(0.0, 14_400.0, 60.0))[0] / 60.0
    steps = np.abs(np.diff(counts)) / counts[:-1]
    assert np.median(steps) < 0.25
    assert steps.max() > 0.5


def test_desks_open_one_after_another_and_stay() -> None:
    load = growing_desks(np.random.default_rng(3), 9.0, 1.0)
    assert _rate(load, 2700, 3600) > 1.6 * _rate(load, 0, 300)


def test_documents_swell_and_ebb_among_chat() -> None:
    load = documents(np.random.default_rng(3), 1.0)
    assert np.all(np.diff(load.arrival_s) >= 0)
    shares = [np.mean(load.between(at, at + 100).prompt_tokens > 7000) for at in (0.0, 700.0)]
    assert shares[1] > 2 * shares[0]


def test_jobs_are_bursty_on_every_scale() -> None:
    load = jobs(np.random.default_rng(3), 3.0, 2.0)
    for width in (30.0, 300.0):
        counts = np.histogram(load.arrival_s, np.arange(0.0, 7200.0, width))[0]
        assert counts.var() / counts.mean() > 2.0


def test_swells_rise_and_fall_within_minutes() -> None:
    load = bells(np.random.default_rng(3), 3.0, 12.0, 1.0)
    rates = np.array([_rate(load, start, start + 60.0) for start in range(0, 3540, 60)])
    assert rates.max() > 2 * rates.min()
    assert np.max(np.abs(np.diff(rates))) < 0.6 * (rates.max() - rates.min()), "it is no step"


def test_prompts_grow_and_answers_shrink_at_one_rate() -> None:
    load = drifting(np.random.default_rng(3), 6.0, 1.0)
    first, last = load.between(0, 300), load.between(3300, 3600)
    assert np.median(last.prompt_tokens) > 5 * np.median(first.prompt_tokens)
    assert np.median(first.output_tokens) > 3 * np.median(last.output_tokens)
    assert _rate(load, 0, 1800) == pytest.approx(_rate(load, 1800, 3600), rel=0.1)


def test_writing_and_reading_sway() -> None:
    load = swaying(np.random.default_rng(3), 1.0, period_s=1200.0)
    assert np.all(np.diff(load.arrival_s) >= 0)
    shares = [float(np.mean(load.between(at, at + 100).prompt_tokens > 3000)) for at in range(0, 1200, 100)]
    assert max(shares) > 5 * min(shares)
    again = [float(np.mean(load.between(at, at + 100).prompt_tokens > 3000)) for at in range(1200, 2400, 100)]
    assert np.corrcoef(shares, again)[0, 1] > 0.9


def test_a_rollout_goes_up_in_steps_and_back_once() -> None:
    load = rollout(np.random.default_rng(3), 12.0, 1.0)
    rates = np.array([_rate(load, start, start + 60.0) for start in range(0, 3540, 60)])
    assert rates[:5].max() < 2.0
    assert rates[-5:].min() > 8.0
    top = int(np.argmax(rates > 2.0))
    assert rates[top:].min() < 1.5, "everybody is shut out again"


def test_timers_start_jobs_on_the_minute() -> None:
    load = timers(np.random.default_rng(3), 4.0, 1.0)
    jobs = [_rate(load, at, at + 90.0) - _rate(load, at + 150.0, at + 400.0) for at in range(600, 3000, 600)]
    assert np.mean(jobs) > 1.0
    assert all(len(load.between(at, at + 2.0)) > 40 for at in range(420, 3500, 420))


def test_agents_ask_one_after_another_with_what_was_said_before() -> None:
    load = agents(np.random.default_rng(3), 18.0, 0.5)
    assert np.all(np.diff(load.arrival_s) >= 0)
    assert np.all(load.cached_tokens < load.prompt_tokens)
    assert load.cached_tokens.sum() > 0.8 * load.prompt_tokens.sum()


def test_a_rate_like_itself_is_as_uneven_over_minutes_as_over_seconds() -> None:
    load = self_similar(np.random.default_rng(3), 20.0, 4.0)
    spreads = []
    for width in (10.0, 100.0, 1000.0):
        counts = np.histogram(load.arrival_s, np.arange(0.0, 14_400.0, width))[0]
        spreads.append(float(counts.std() / counts.mean()))
    assert spreads[2] > 0.4 * spreads[0], "chance alone would leave a tenth"


def test_contracts_get_fewer_and_one_prompt_in_ten_is_long() -> None:
    load = contracts(np.random.default_rng(3), 9.0, 2.0, 1.0)
    assert _rate(load, 0, 600) > 2.5 * _rate(load, 3000, 3600)
    assert np.mean(load.prompt_tokens > 8000) == pytest.approx(0.1, abs=0.02)


def test_shop_days_have_two_tops() -> None:
    load = shop_days(np.random.default_rng(3), 1.0, 1.0)
    rates = [_rate(load, hour * 3600.0, (hour + 1) * 3600.0) for hour in range(24)]
    assert min(rates[10], rates[20]) > 3 * max(rates[3], rates[15])


def test_a_match_has_a_break_and_goals() -> None:
    load = match(np.random.default_rng(3), 5.0, 1.0)
    rates = np.array([_rate(load, start, start + 30.0) for start in range(0, 3570, 30)])
    calm = np.median(rates)
    assert _rate(load, 0, 60) < 0.5 * calm
    assert rates.max() > 1.8 * calm
    assert rates[58:72].min() < 0.7 * calm, "half of them ask in the break"


def test_lessons_begin_at_once_and_have_breaks() -> None:
    load = lessons(np.random.default_rng(3), 20.0, 1.0)
    rates = np.array([_rate(load, start, start + 20.0) for start in range(0, 3580, 20)])
    is_break = rates < 0.2 * rates.mean()
    assert np.mean(is_break) == pytest.approx(240 / 1140, abs=0.08)
    begins = np.flatnonzero(is_break[:-1] & ~is_break[1:])
    assert len(begins) >= 2
    assert all(rates[at + 2 : at + 5].mean() > 1.4 * rates[at + 18 : at + 30].mean() for at in begins[:2])


def test_a_region_takes_over_twice() -> None:
    load = failovers(np.random.default_rng(3), 20.0, 1.0)
    rates = np.array([_rate(load, start, start + 20.0) for start in range(0, 3580, 20)])
    is_double = rates > 1.25 * np.percentile(rates, 20)
    begins = np.flatnonzero(~is_double[:-1] & is_double[1:])
    assert len(begins) == 2
    assert 700 < 20 * np.sum(is_double) < 1900
    assert np.all(np.diff(load.arrival_s) >= 0)


def test_translations_are_as_long_as_their_prompts_and_come_in_files() -> None:
    load = translations(np.random.default_rng(3), 240.0, 1.0)
    assert np.corrcoef(np.log(load.prompt_tokens), np.log(load.output_tokens))[0, 1] > 0.9
    counts = np.histogram(load.arrival_s, np.arange(0.0, 3600.0, 30.0))[0]
    assert counts.var() / counts.mean() > 4.0


def test_the_share_of_thinking_changes_and_the_rate_does_not() -> None:
    load = thinking(np.random.default_rng(3), 20.0, 1.0)
    parts = [load.between(start, start + 120.0) for start in range(0, 3600, 120)]
    shares = [float(np.mean(part.output_tokens > 1000)) for part in parts]
    assert max(shares) > 2.0 * min(shares)
    assert max(map(len, parts)) < 1.2 * min(map(len, parts))


def test_a_day_has_batches_of_long_answers_at_night() -> None:
    load = day_and_batches(np.random.default_rng(3), 3.0, 20.0)
    assert _rate(load, 9 * 3600, 11 * 3600) > 10 * _rate(load, 0, 7000)
    batch = load.between(2.1 * 3600, 2.6 * 3600)
    assert np.median(batch.output_tokens) > 2 * np.median(load.between(9 * 3600, 11 * 3600).output_tokens)
    assert _rate(load, 4 * 3600, 4.9 * 3600) < 0.3 * _rate(load, 2.1 * 3600, 2.6 * 3600)


def test_mailings_are_bursts_of_a_minute_of_very_unlike_height() -> None:
    load = mailings(np.random.default_rng(3), 4.0, 2.0)
    rates = np.array([_rate(load, start, start + 20.0) for start in range(0, 7180, 20)])
    assert np.median(rates) == pytest.approx(4.0, rel=0.35)
    assert rates.max() > 3 * np.median(rates)
    assert np.mean(rates > 1.7 * np.median(rates)) < 0.35


def test_a_few_questions_to_an_archive_are_most_of_the_work() -> None:
    load = archives(np.random.default_rng(3), 3.5, 1.0)
    prompts = np.sort(load.prompt_tokens)
    assert prompts[-len(prompts) // 10 :].sum() > 0.35 * prompts.sum()
    assert prompts.min() >= 1200


def test_studios_write_or_read_for_minutes() -> None:
    load = studios(np.random.default_rng(3), 1.0)
    shares = np.array([np.mean(load.between(at, at + 60.0).prompt_tokens > 2500) for at in range(0, 3540, 60)])
    assert shares.max() > 0.6
    assert shares.min() < 0.1


def test_interviews_begin_together_and_hold_what_was_said() -> None:
    load = interviews(np.random.default_rng(3), 6.0, 1.0)
    firsts = load.arrival_s[load.cached_tokens == 900]
    assert len(firsts)
    assert np.all((firsts + 600.0) % 900.0 < 180.0)
    assert load.cached_tokens.sum() > 0.6 * load.prompt_tokens.sum()


def test_a_relay_is_never_without_a_region_for_long() -> None:
    load = relays(np.random.default_rng(3), 8.0, 1.2)
    rates = np.array([_rate(load, start, start + 60.0) for start in range(0, 4260, 60)])
    assert rates.min() > 0.5
    assert rates.max() > 1.5 * rates.min()


def test_behind_an_outage_all_come_at_once() -> None:
    load = outages(np.random.default_rng(3), 7.0, 1.0)
    ends = load.arrival_s[1:][np.diff(load.arrival_s) > 12.0]
    assert len(ends) >= 2
    assert all(_rate(load, end, end + 5.0) > 14.0 for end in ends.tolist())
