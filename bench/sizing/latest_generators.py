"""Generators of the test loads that were written before the simulator deferred prompts: each draws anew from the random
numbers it is given."""

from __future__ import annotations

import numpy as np
from bench.sizing.generators import CHAT_LENGTHS, HOUR_S, Lengths, by_second, with_lengths
from bench.sizing.judging_generators import merge

from baton_control.sizing.inputs.workload import Workload

MOST_TOKENS = 32_768


def mailings(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Chat, and mailings whose readers all ask within a minute. They come by chance, one in seven minutes; most add as
    much as there is, a few several times that (Pareto, 1.5, at most six times)."""
    duration_s = hours * HOUR_S
    seconds = np.arange(0.0, duration_s)
    level = np.ones(len(seconds))
    for start in np.cumsum(random.exponential(420.0, int(duration_s / 120.0))):
        height = min(6.0, 1.0 + float(random.pareto(1.5)))
        level = level + np.where((seconds >= start) & (seconds < start + random.uniform(45.0, 75.0)), height, 0.0)
    return with_lengths(by_second(random, rate * level), random, (700.0, 0.7), (200.0, 0.7))


def archives(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Questions to an archive at a steady rate. Prompts have a tail without a mean worth the name (Pareto, 1.2, from
    1,200 tokens on), answers one like it (1.6, from 60)."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    prompts, outputs = (
        np.clip(least * (1.0 + random.pareto(tail, len(times))), 1, most).astype(np.int64)
        for least, tail, most in ((1200.0, 1.2, MOST_TOKENS), (60.0, 1.6, 4096))
    )
    return Workload(times, prompts, outputs, np.zeros(len(times), dtype=np.int64))


def studios(random: np.random.Generator, hours: float) -> Workload:
    """One thing after the other in spells of two to twelve minutes: drafts to write, sources to read. A tenth of each
    spell is of the other kind."""
    drafts: tuple[float, Lengths] = (9.0, ((350.0, 0.6), (1300.0, 0.5)))
    sources: tuple[float, Lengths] = (3.5, ((8000.0, 0.5), (110.0, 0.6)))
    seconds = np.arange(0.0, hours * HOUR_S)
    ends = np.cumsum(random.uniform(120.0, 720.0, int(hours * HOUR_S / 120.0) + 1))
    is_even = (np.searchsorted(ends, seconds) + int(random.integers(2))) % 2 == 0
    return merge(
        *(
            with_lengths(by_second(random, rate * np.where(is_even == first, 0.9, 0.1)), random, *lengths)
            for first, (rate, lengths) in ((True, drafts), (False, sources))
        )
    )


def interviews(random: np.random.Generator, a_minute: float, hours: float) -> Workload:
    """Conversations that begin on the quarter of an hour, within three minutes, and have eight to 20 turns. Each prompt
    holds what was said before, which is cached. Some are as many as twice the mean, some a fifth."""
    duration_s = hours * HOUR_S
    rows: list[tuple[float, int, int, int]] = []
    for quarter in np.arange(-600.0, duration_s, 900.0):
        for start in quarter + random.uniform(0.0, 180.0, random.poisson(15 * a_minute * random.uniform(0.2, 2.0))):
            at, context = float(start), 900
            for _ in range(int(random.integers(8, 21))):
                asked, answer = int(random.lognormal(np.log(120), 0.7)) + 1, int(random.lognormal(np.log(180), 0.5)) + 1
                rows.append((at, context + asked, answer, context))
                context += asked + answer
                at += 10.0 + random.exponential(35.0)
    ordered = sorted(row for row in rows if 0.0 <= row[0] < duration_s)
    times, prompts, outputs, cached = (np.array(column) for column in zip(*ordered, strict=True))
    return Workload(times, prompts, outputs, cached)


def relays(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Three regions that work one after the other, for 25 minutes each with ten of slope. Each has a size and lengths
    of its own; the next begins while the last one ends."""
    seconds = np.arange(0.0, hours * HOUR_S)
    load: Workload | None = None
    for number in range(int(hours * HOUR_S / 1500.0) + 2):
        since = seconds - 1500.0 * (number - random.uniform(0.3, 0.7))
        level = np.clip(np.minimum(since / 600.0, (2100.0 - since) / 600.0), 0.0, 1.0) * random.uniform(0.4, 1.4)
        prompt, output = random.uniform(500.0, 2500.0), random.uniform(120.0, 500.0)
        part = with_lengths(by_second(random, rate * level), random, (prompt, 0.7), (output, 0.7))
        load = part if load is None else merge(load, part)
    assert load is not None
    return load


def outages(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A network before us that fails about every ten minutes for 15 to 60 s. Two of three who would have come in it
    come in the five seconds after it."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    for start in np.cumsum(random.exponential(600.0, int(hours * HOUR_S / 150.0))):
        end = start + random.uniform(15.0, 60.0)
        is_held = (times >= start) & (times < end)
        comes = random.uniform(size=len(times)) < 2 / 3
        times = np.where(is_held, end + random.uniform(0.0, 5.0, len(times)), times)[~is_held | comes]
    times = np.sort(times)
    return with_lengths(times[times < hours * HOUR_S], random, *CHAT_LENGTHS)
