"""Generators of the test loads of 2026-11-27: each draws anew from the random numbers it is given."""

from __future__ import annotations

import numpy as np
from bench.sizing.generators import CHAT_LENGTHS, HOUR_S, by_second, with_lengths

from baton_control.sizing.inputs.workload import Workload


def match(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """People who watch a match: they come within ten minutes and stay but for a break in the middle, when half the
    crowd ask. Each of about seven goals brings one to three times as many on top for a minute, then half as many each
    50 s.
    """
    duration_s = hours * HOUR_S
    seconds = np.arange(0.0, duration_s)
    part = seconds / duration_s
    level = 0.15 + 0.85 * np.clip(seconds / 600.0, 0.0, 1.0)
    level = np.where((part > 0.48) & (part < 0.6), 0.5, level)
    for goal in random.uniform(0.1, 0.95, random.poisson(7)) * duration_s:
        since = seconds - goal
        level = level + np.where(since >= 0.0, random.uniform(1.0, 3.0) * 0.5 ** (np.maximum(0.0, since - 60) / 50), 0)
    return with_lengths(by_second(random, rate * level), random, (600.0, 0.6), (220.0, 0.6))


def lessons(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Lessons of 15 minutes with breaks of four: as many pupils as the hour has, 0.4 to 1.6 times the mean. They all
    begin within half a minute, at twice the rate that is left after five minutes."""
    seconds = np.arange(0.0, hours * HOUR_S)
    number, since = np.divmod(seconds + random.uniform(0.0, 900.0), 1140.0)
    pupils = random.uniform(0.4, 1.6, int(number.max()) + 1)[number.astype(np.int64)]
    rush = np.clip(since / 30.0, 0.0, 1.0) * (1.0 + np.clip(1.0 - since / 300.0, 0.0, 1.0))
    level = np.where(since < 900.0, pupils * rush, 0.08)
    return with_lengths(by_second(random, rate * level), random, (1100.0, 0.6), (260.0, 0.6))


def failovers(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A region that takes over another's requests twice, at once and for six to fifteen minutes. The other one is half
    as large to half as large again, and its prompts are longer."""
    duration_s = hours * HOUR_S
    seconds = np.arange(0.0, duration_s)
    share = np.zeros(len(seconds))
    for start in (random.uniform(0.08, 0.3), random.uniform(0.5, 0.75)):
        since = seconds - start * duration_s
        share = np.where((since >= 0.0) & (since < random.uniform(360.0, 900.0)), random.uniform(0.5, 1.5), share)
    own = with_lengths(by_second(random, np.full(len(seconds), rate)), random, *CHAT_LENGTHS)
    other = with_lengths(by_second(random, rate * share), random, (1600.0, 0.7), (240.0, 0.7))
    return merge(own, other)


def translations(random: np.random.Generator, files_per_hour: float, hours: float) -> Workload:
    """Files that are translated piece by piece, 20 to 400 pieces at one to eight a second; each answer is about as long
    as its prompt, from 0.8 to 1.4 times."""
    duration_s = hours * HOUR_S
    times = []
    for start in random.uniform(-300.0, duration_s, random.poisson(files_per_hour * (duration_s + 300.0) / HOUR_S)):
        pieces, speed = int(np.exp(random.uniform(np.log(20.0), np.log(400.0)))), random.uniform(1.0, 8.0)
        sent = start + np.arange(pieces) / speed
        times.append(sent[(sent >= 0.0) & (sent < duration_s)])
    load = with_lengths(np.sort(np.concatenate(times)), random, (450.0, 0.5), (1.0, 0.0))
    outputs = np.clip(load.prompt_tokens * random.uniform(0.8, 1.4, len(load)), 1, 4096).astype(np.int64)
    return Workload(load.arrival_s, load.prompt_tokens, outputs, load.cached_tokens)


def thinking(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Chat of which some requests make the model think, with answers of 1,800 tokens in the median. Their share is
    drawn anew from 3 to 45 % every four to twelve minutes, while the rate stays."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    ends = np.cumsum(random.uniform(240.0, 720.0, int(hours * HOUR_S / 240.0) + 1))
    shares = random.uniform(0.03, 0.45, len(ends))[np.searchsorted(ends, times)]
    plain, long = (
        with_lengths(times, random, CHAT_LENGTHS[0], outputs) for outputs in (CHAT_LENGTHS[1], (1800.0, 0.5))
    )
    outputs = np.where(random.uniform(0.0, 1.0, len(times)) < shares, long.output_tokens, plain.output_tokens)
    return Workload(times, plain.prompt_tokens, outputs, plain.cached_tokens)


def day_and_batches(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A day from midnight on: nearly no requests at night, then people until the evening, fewer at noon, and a batch of
    reports at two and at five o'clock, for 40 to 80 minutes at a third of the day's rate, with answers of 900
    tokens."""
    seconds = np.arange(0.0, hours * HOUR_S)
    hour = seconds / HOUR_S
    level = 0.04 + 0.96 * np.clip(np.minimum((hour - 7.0) / 2.0, (19.0 - hour) / 2.0), 0.0, 1.0)
    level = level * (1.0 - 0.35 * np.exp(-0.5 * ((hour - 12.5) / 0.5) ** 2)) * random.uniform(0.85, 1.15)
    people = with_lengths(by_second(random, rate * level), random, *CHAT_LENGTHS)
    is_batch = np.zeros(len(seconds), dtype=np.bool_)
    for start in (2.0, 5.0):
        is_batch |= (hour >= start) & (hour < start + random.uniform(40.0, 80.0) / 60.0)
    reports = with_lengths(by_second(random, np.where(is_batch, rate / 3.0, 0.0)), random, (1500.0, 0.4), (900.0, 0.3))
    return merge(people, reports)


def merge(one: Workload, other: Workload) -> Workload:
    order = np.argsort(np.concatenate([one.arrival_s, other.arrival_s]), kind="stable")
    times, prompts, outputs, cached = (
        np.concatenate([getattr(one, name), getattr(other, name)])[order]
        for name in ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens")
    )
    return Workload(times, prompts, outputs, cached)
