"""Generators of the test loads whose requests come in clumps: each draws anew from the random numbers it is given."""

from __future__ import annotations

import numpy as np
from bench.sizing.generators import CHAT_LENGTHS, HOUR_S, by_second, with_lengths
from bench.sizing.judging_generators import merge

from baton_control.sizing.inputs.workload import Workload


def reviews(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Chat, and reviews of what programmers push, about one in 50 s: 5 to 120 files at once, within 15 s, as prompts of
    2,500 tokens in the median with short answers. In the second half twice as many push."""
    duration_s = hours * HOUR_S
    chat = with_lengths(by_second(random, np.full(int(duration_s), rate)), random, *CHAT_LENGTHS)
    files = []
    for start in random.uniform(0.0, duration_s, random.poisson(duration_s / 50.0)):
        if start > duration_s / 2 or random.uniform() < 0.5:
            count = int(np.exp(random.uniform(np.log(5.0), np.log(120.0))))
            files.append(start + random.uniform(0.0, 15.0, count))
    times = np.sort(np.concatenate(files))
    return merge(chat, with_lengths(times[times < duration_s], random, (2500.0, 0.7), (140.0, 0.6)))


def auctions(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Auctions of eight to 20 minutes, one after the other: bidders ask more and more often, the rate doubles each
    two minutes up to the end, and is gone then. Some draw three times as many as others."""
    seconds = np.arange(0.0, hours * HOUR_S)
    ends = np.cumsum(random.uniform(480.0, 1200.0, int(hours * HOUR_S / 480.0) + 2)) - random.uniform(0.0, 400.0)
    number = np.searchsorted(ends, seconds)
    heights = random.uniform(0.7, 2.1, len(ends))[number]
    level = 0.25 + heights * 0.5 ** ((ends[number] - seconds) / 120.0)
    return with_lengths(by_second(random, rate * level), random, (1300.0, 0.6), (160.0, 0.7))


def tickets(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Calm chat, and three sales. The shop has a waiting room that lets in 60 to 150 people each 20 s until
    1,500 to 4,500 are in; each asks once or twice within the minute."""
    duration_s = hours * HOUR_S
    chat = with_lengths(by_second(random, np.full(int(duration_s), rate)), random, *CHAT_LENGTHS)
    times = []
    for start in (random.uniform(0.05, 0.2), random.uniform(0.35, 0.5), random.uniform(0.65, 0.8)):
        at, left = start * duration_s, int(random.uniform(1500.0, 4500.0))
        while left > 0:
            people = min(left, int(random.uniform(60.0, 150.0)))
            asked = random.uniform(0.0, 60.0, people + random.binomial(people, 0.5))
            times.append(at + asked * (random.uniform(size=len(asked)) < 0.5) + random.uniform(0.0, 3.0, len(asked)))
            at, left = at + 20.0, left - people
    asked = np.sort(np.concatenate(times))
    return merge(chat, with_lengths(asked[asked < duration_s], random, (900.0, 0.5), (120.0, 0.5)))


def stories(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Stories of 1,500 tokens in the median, some of 4,000, for short prompts. Their rate goes a random way within half
    and twice the mean, in steps of a minute."""
    minutes = int(hours * 60.0) + 1
    way = np.exp(np.clip(np.cumsum(random.normal(0.0, 0.16, minutes)), np.log(0.5), np.log(2.0)))
    return with_lengths(by_second(random, rate * np.repeat(way, 60)[: int(hours * HOUR_S)]), random, (250.0, 0.7),
                        (1500.0, 0.6))  # fmt: skip


def few_tenants(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Five tenants with lengths of their own, each on for three to 15 minutes and off for as long in the mean. One has
    half of all requests while all are on."""
    seconds = np.arange(0.0, hours * HOUR_S)
    load: Workload | None = None
    for share in (0.5, 0.2, 0.15, 0.1, 0.05):
        ends = np.cumsum(random.uniform(180.0, 900.0, int(hours * HOUR_S / 180.0) + 2)) - random.uniform(0.0, 400.0)
        is_on = (np.searchsorted(ends, seconds) + int(random.integers(2))) % 2 == 0
        lengths = (random.uniform(500.0, 4000.0), 0.6), (random.uniform(80.0, 500.0), 0.6)
        part = with_lengths(by_second(random, 2.0 * rate * share * is_on), random, *lengths)
        load = part if load is None else merge(load, part)
    assert load is not None
    return load


def evaluations(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Chat, and evaluations of a set of prompts, about one in nine minutes: 300 to 4,000 questions of 400 tokens at
    ten to 40 a second, with answers of 60."""
    duration_s = hours * HOUR_S
    chat = with_lengths(by_second(random, np.full(int(duration_s), rate)), random, *CHAT_LENGTHS)
    times = [np.zeros(0)]
    for start in random.uniform(0.0, duration_s, random.poisson(duration_s / 540.0)):
        count, speed = int(np.exp(random.uniform(np.log(300.0), np.log(4000.0)))), random.uniform(10.0, 40.0)
        times.append(start + np.arange(count) / speed)
    asked = np.sort(np.concatenate(times))
    return merge(chat, with_lengths(asked[asked < duration_s], random, (400.0, 0.4), (60.0, 0.5)))
