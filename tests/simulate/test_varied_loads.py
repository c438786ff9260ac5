"""The test loads in which something else varies each time have the shape that they claim."""

from __future__ import annotations

import numpy as np
from bench.sizing.varied_generators import (
    aftershocks,
    attachments,
    cold_caches,
    launches,
    quotas,
    renderings,
    short_days,
    verbose_answers,
)

from baton_control.sizing.inputs.workload import Floats, Workload


def _counts(load: Workload, seconds: float) -> Floats:
    return np.histogram(load.arrival_s, np.arange(0.0, load.duration_s, seconds))[0].astype(np.float64)


def _work(load: Workload, seconds: float) -> Floats:
    fresh = (load.prompt_tokens - load.cached_tokens).astype(np.float64)
    return np.histogram(load.arrival_s, np.arange(0.0, load.duration_s, seconds), weights=fresh)[0]


def test_a_cold_cache_is_more_work_for_as_many_requests() -> None:
    load = cold_caches(np.random.default_rng(3), 6.0, 1.0)
    assert _work(load, 60.0).max() > 3 * np.median(_work(load, 60.0))
    assert _counts(load, 60.0).max() < 1.3 * np.median(_counts(load, 60.0))
    assert np.all(load.cached_tokens < load.prompt_tokens)


def test_quotas_are_spent_at_the_top_of_the_minute() -> None:
    load = quotas(np.random.default_rng(3), 6.0, 1.0)
    is_early = load.arrival_s % 60.0 < 15.0
    assert np.mean(is_early) > 0.5


def test_answers_get_longer_while_prompts_do_not() -> None:
    load = verbose_answers(np.random.default_rng(3), 8.0, 1.0)
    parts = [load.between(start, start + 300.0) for start in np.arange(0.0, 3600.0, 300.0)]
    answers = [float(part.output_tokens.mean()) for part in parts]
    prompts = [float(part.prompt_tokens.mean()) for part in parts]
    assert max(answers) > 1.5 * min(answers)
    assert max(prompts) < 1.2 * min(prompts)


def test_a_short_day_has_a_night() -> None:
    counts = _counts(short_days(np.random.default_rng(3), 12.0, 2700.0, 0.75), 60.0)
    assert np.quantile(counts, 0.1) < 0.25 * np.quantile(counts, 0.9)


def test_a_shock_falls_slowly() -> None:
    load = aftershocks(np.random.default_rng(3), 4.0, 1.0)
    counts = _counts(load, 30.0)
    top = int(np.argmax(counts))
    assert counts[top] > 2 * np.median(counts)
    assert counts[min(len(counts) - 1, top + 4)] > 1.05 * np.median(counts)


def test_the_share_of_papers_changes() -> None:
    load = attachments(np.random.default_rng(3), 5.0, 1.0)
    work = _work(load, 60.0)
    assert np.quantile(work, 0.9) > 1.7 * np.quantile(work, 0.1)


def test_a_launch_rises_on_a_line() -> None:
    counts = _counts(launches(np.random.default_rng(3), 5.0, 1.0), 30.0)
    assert counts.max() > 2.5 * counts.min()
    assert np.max(np.abs(np.diff(counts))) < 0.5 * counts.max()


def test_jobs_that_render_run_side_by_side() -> None:
    counts = _counts(renderings(np.random.default_rng(3), 0.6, 1.0), 30.0)
    assert counts.max() > 2 * np.median(counts)
