"""Generators of the test loads in which something else varies each time: the work of a request, the length of answers,
who is there, how steep it rises. Each draws anew from the random numbers it is given."""

from __future__ import annotations

import numpy as np
from bench.sizing.generators import CHAT_LENGTHS, HOUR_S, Lengths, by_second, with_lengths
from bench.sizing.judging_generators import merge

from baton_control.sizing.inputs.workload import Workload

PREAMBLE_TOKENS = 6000


def cold_caches(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Questions after a preamble that is cached. About every twelve minutes it is a new one: all requests miss it at
    first, and half as many miss it each 40 s. As many requests come all the time; their work is up to ten times as
    much."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    missing = np.full(len(times), 0.02)
    for start in np.cumsum(random.uniform(300.0, 1140.0, int(hours * HOUR_S / 300.0) + 1)):
        missing = np.maximum(missing, np.where(times >= start, 0.5 ** ((times - start) / 40.0), 0.0))
    load = with_lengths(times, random, (500.0, 0.6), (180.0, 0.7))
    cached = np.where(random.uniform(size=len(times)) < missing, 0, PREAMBLE_TOKENS)
    return Workload(times, load.prompt_tokens + PREAMBLE_TOKENS, load.output_tokens, cached.astype(np.int64))


def quotas(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Chat, and programs with a quota by the minute: they spend it in the first 15 s of each. Between one and nine
    programs run; one begins or ends every two minutes."""
    duration_s = hours * HOUR_S
    chat = with_lengths(by_second(random, np.full(int(duration_s), rate / 2)), random, *CHAT_LENGTHS)
    steps = random.choice([-1, 1], int(duration_s / 120.0) + 1)
    programs = np.clip(4 + np.cumsum(steps), 1, 9)[(np.arange(0.0, duration_s) // 120.0).astype(np.int64)]
    is_spent = np.arange(0.0, duration_s) % 60.0 < 15.0
    calls = by_second(random, rate / 2 * programs * is_spent)
    return merge(chat, with_lengths(calls, random, (500.0, 0.5), (100.0, 0.5)))


def verbose_answers(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A steady rate whose answers get longer and shorter: a new setting is tried on some of all users, 5 to 90 %, for
    five to 15 minutes. Their answers are three times as long, for the same prompts."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    ends = np.cumsum(random.uniform(300.0, 900.0, int(hours * HOUR_S / 300.0) + 1))
    shares = random.uniform(0.05, 0.9, len(ends)) * (np.arange(len(ends)) % 2 == int(random.integers(2)))
    is_long = random.uniform(size=len(times)) < shares[np.searchsorted(ends, times)]
    load = with_lengths(times, random, (400.0, 0.7), (350.0, 0.6))
    return Workload(times, load.prompt_tokens, load.output_tokens * np.where(is_long, 3, 1), load.cached_tokens)


def short_days(random: np.random.Generator, rate: float, day_s: float, hours: float) -> Workload:
    """Days that are over in `day_s`: a night of a tenth, a steep morning, a dip at noon, an afternoon and a lower
    evening. Each day has 0.7 to 1.3 times the mean, and noise that stays for a minute."""
    seconds = np.arange(0.0, hours * HOUR_S)
    hour = (seconds / day_s * 24.0 + random.uniform(0.0, 24.0)) % 24.0
    shape = np.interp(hour, [0, 6, 8, 9.5, 12, 13, 14.5, 17, 19, 21, 24],
                      [0.1, 0.1, 0.5, 1.0, 1.0, 0.6, 1.1, 0.9, 0.5, 0.6, 0.1])  # fmt: skip
    days = random.uniform(0.7, 1.3, int(seconds[-1] / day_s) + 2)[(seconds / day_s).astype(np.int64)]
    noise = np.exp(random.normal(0.0, 0.15, int(hours * 60.0) + 1))[(seconds // 60.0).astype(np.int64)]
    return with_lengths(by_second(random, rate * days * shape * noise), random, *CHAT_LENGTHS)


def aftershocks(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """News that many ask about: about three shocks, each as tall as a Pareto says (1.3, from twice the rate on), at its
    top after ten seconds. What follows falls as 1 / (1 + t / 45 s), so that it is felt for a quarter of an hour."""
    duration_s = hours * HOUR_S
    seconds = np.arange(0.0, duration_s)
    level = np.ones(len(seconds))
    for start in random.uniform(0.03, 0.9, 1 + random.poisson(2.0)) * duration_s:
        since = seconds - start
        height = 2.0 * min(4.0, 1.0 + float(random.pareto(1.3)))
        rises = np.clip(since / 10.0, 0.0, 1.0)
        level = level + height * rises / (1.0 + np.maximum(0.0, since - 10.0) / 45.0)
    return with_lengths(by_second(random, rate * level), random, (900.0, 0.6), (180.0, 0.6))


def attachments(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Chat at a steady rate, of which some have a paper attached: 2 to 35 %, another share every one to eight minutes.
    A paper has 7,000 tokens in the median."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    ends = np.cumsum(random.uniform(60.0, 480.0, int(hours * HOUR_S / 60.0) + 1))
    shares = random.uniform(0.02, 0.35, len(ends))[np.searchsorted(ends, times)]
    has_paper = random.uniform(size=len(times)) < shares
    load = with_lengths(times, random, *CHAT_LENGTHS)
    papers = random.lognormal(np.log(7000.0), 0.5, len(times)).astype(np.int64)
    prompts = np.minimum(load.prompt_tokens + np.where(has_paper, papers, 0), 32_768)
    return Workload(times, prompts, load.output_tokens, load.cached_tokens)


def launches(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Ramps: what is launched grows on a line for two to 15 minutes to one to four times the rate, stays for as long
    and goes away twice as fast. The next one begins when it is gone, or up to four minutes before."""
    seconds = np.arange(0.0, hours * HOUR_S)
    level, at = np.full(len(seconds), 0.4), float(random.uniform(60.0, 400.0))
    while at < seconds[-1]:
        ramp_s, height = random.uniform(120.0, 900.0), random.uniform(1.0, 4.0)
        end = at + 2.5 * ramp_s
        level = level + height * np.interp(seconds, [at, at + ramp_s, at + 2 * ramp_s, end], [0.0, 1.0, 1.0, 0.0])
        at = end - random.uniform(0.0, 240.0)
    return with_lengths(by_second(random, rate * level), random, (1000.0, 0.6), (220.0, 0.7))


def renderings(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Jobs that come by chance, one a minute and a half, and run side by side for as long as a Pareto says (1.2, from
    20 s on, at most half an hour): many are over soon, a few stay. Each asks at one rate, 3,500 tokens a prompt."""
    duration_s = hours * HOUR_S
    lengths: Lengths = ((3500.0, 0.5), (150.0, 0.6))
    running = np.zeros(int(duration_s))
    seconds = np.arange(0.0, len(running))
    for start in random.uniform(-900.0, duration_s, random.poisson((duration_s + 900.0) / 90.0)):
        end = start + min(1800.0, 20.0 * (1.0 + float(random.pareto(1.2))))
        running = running + ((seconds >= start) & (seconds < end))
    return with_lengths(by_second(random, rate * running), random, *lengths)
