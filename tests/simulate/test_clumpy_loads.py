"""The test loads that come in clumps have the shape that they claim."""

from __future__ import annotations

import numpy as np
from bench.sizing.clumpy_generators import auctions, evaluations, few_tenants, reviews, stories, tickets

from baton_control.sizing.inputs.workload import Floats, Workload


def _counts(load: Workload, seconds: float) -> Floats:
    return np.histogram(load.arrival_s, np.arange(0.0, load.duration_s + seconds, seconds))[0].astype(np.float64)


def test_pushed_files_come_at_once_and_more_often_later() -> None:
    load = reviews(np.random.default_rng(3), 4.0, 1.0)
    files = load.prompt_tokens > 2000
    clumps = np.histogram(load.arrival_s[files], np.arange(0.0, 3600.0, 15.0))[0]
    assert clumps.max() > 8 * np.median(clumps)
    assert np.sum(files & (load.arrival_s > 1800.0)) > 1.2 * np.sum(files & (load.arrival_s < 1800.0))


def test_the_end_of_an_auction_is_its_peak() -> None:
    counts = _counts(auctions(np.random.default_rng(3), 12.0, 1.0), 30.0)
    falls = counts[:-2] - counts[2:]
    rises = counts[2:] - counts[:-2]
    assert falls.max() > 1.5 * rises.max()


def test_a_waiting_room_lets_in_what_waits_before_it() -> None:
    counts = _counts(tickets(np.random.default_rng(3), 5.0, 1.0), 60.0)
    assert counts.max() > 2 * np.quantile(counts, 0.2)


def test_stories_have_long_answers_and_no_step_of_the_rate() -> None:
    load = stories(np.random.default_rng(3), 10.0, 1.0)
    assert np.median(load.output_tokens) > 5 * np.median(load.prompt_tokens)
    counts = _counts(load, 120.0)[:-1]
    assert np.all(counts[1:] < 2 * counts[:-1])


def test_a_tenant_of_few_is_seen_when_it_goes() -> None:
    load = few_tenants(np.random.default_rng(3), 7.0, 1.0)
    counts = _counts(load, 60.0)[:-1]
    assert counts.max() > 3 * max(1.0, counts.min())
    assert np.all(np.diff(load.arrival_s) >= 0.0)


def test_evaluations_stand_on_a_steady_rate() -> None:
    counts = _counts(evaluations(np.random.default_rng(3), 6.0, 1.0), 30.0)[:-1]
    assert np.quantile(counts, 0.2) < 7.5 * 30.0
    assert counts.max() > 14.0 * 30.0
