"""Generators of the test loads of 2026-11-26: each draws anew from the random numbers it is given."""

from __future__ import annotations

import numpy as np
from bench.sizing.generators import CHAT_LENGTHS, HOUR_S, by_second, with_lengths

from baton_control.sizing.inputs.workload import Workload


def rollout(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A product opened to 5, 20, 50 and 100 % of its users, each step 7 to 11 minutes long; once, at a random step but
    the first, everybody but 5 % is shut out again for four minutes."""
    back = int(random.integers(1, 4))
    levels: list[tuple[float, float]] = []
    for number, share in enumerate((0.05, 0.2, 0.5, 1.0)):
        levels.append((random.uniform(420.0, 660.0), share))
        if number == back:
            levels += [(240.0, 0.05), (random.uniform(420.0, 660.0), share)]
    rates = np.concatenate([np.full(int(seconds), rate * share) for seconds, share in levels])
    rates = np.concatenate([rates, np.full(max(0, int(hours * HOUR_S) - len(rates)), rate)])
    return with_lengths(by_second(random, rates[: int(hours * HOUR_S)]), random, *CHAT_LENGTHS)


def timers(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Calm chat, and jobs that timers start: on every tenth minute one of 200 requests in the median (log-normal, 0.6)
    evenly over 90 s, on every seventh a small one of 40 at once."""
    duration_s = hours * HOUR_S
    calm = random.uniform(0.0, duration_s, random.poisson(rate * duration_s))
    large = [
        at + random.uniform(0.0, 90.0, int(random.lognormal(np.log(200.0), 0.6)))
        for at in np.arange(600.0, duration_s - 90.0, 600.0)
    ]
    small = [at + random.uniform(0.0, 2.0, 40) for at in np.arange(420.0, duration_s - 2.0, 420.0)]
    return with_lengths(np.sort(np.concatenate([calm, *large, *small])), random, *CHAT_LENGTHS)


def agents(random: np.random.Generator, per_minute: float, hours: float) -> Workload:
    """Agents that start in groups of one to eight and send 5 to 40 requests one after another: each has all that was
    said before, cached but for the newest 200 to 3,000 tokens, and waits for a tool for some seconds in between."""
    duration_s, rows = hours * HOUR_S, list[tuple[float, int, int, int]]()
    for start in random.uniform(-900.0, duration_s, random.poisson(per_minute / 4.5 * (duration_s + 900.0) / 60.0)):
        for _ in range(int(random.integers(1, 9))):
            at, context = float(start + random.uniform(0.0, 5.0)), 3000
            for _ in range(int(random.integers(5, 41))):
                new, answer = int(random.uniform(200.0, 3000.0)), int(random.lognormal(np.log(120.0), 0.7)) + 1
                if context + new > 32_768:
                    break
                rows.append((at, context + new, answer, context))
                context += new + answer
                at += 3.0 + answer * 0.02 + random.exponential(6.0)
    rows = sorted(row for row in rows if 0.0 <= row[0] < duration_s)
    times, prompts, outputs, cached = (np.array(column) for column in zip(*rows, strict=True))
    return Workload(times - times[0], prompts, outputs, cached)


def self_similar(random: np.random.Generator, rate: float, hours: float, hurst: float = 0.85) -> Workload:
    """A rate whose logarithm (deviation 0.45) is noise as bursty over minutes as over seconds."""
    count = int(hours * HOUR_S)
    frequencies = np.fft.rfftfreq(2 * count)[1:]
    waves = frequencies ** (0.5 - hurst) * (random.normal(size=count) + 1j * random.normal(size=count))
    noise = np.fft.irfft(np.concatenate([[0.0], waves]), 2 * count)[:count]
    noise = (noise - noise.mean()) / noise.std()
    return with_lengths(by_second(random, rate * np.exp(0.45 * noise - 0.1)), random, *CHAT_LENGTHS)


def contracts(random: np.random.Generator, first: float, last: float, hours: float) -> Workload:
    """A rate that falls evenly from `first` to `last`; prompts with a long tail: nine mails of 1,200 tokens in the
    median to a contract of 20,000."""
    times = by_second(random, np.linspace(first, last, int(hours * HOUR_S)))
    mails = with_lengths(times, random, (1200.0, 0.8), (160.0, 0.8))
    long = with_lengths(times, random, (20_000.0, 0.4), (250.0, 0.6))
    is_mail = random.uniform(0.0, 1.0, len(times)) < 0.9
    prompts, outputs = (
        np.where(is_mail, getattr(mails, name), getattr(long, name)) for name in ("prompt_tokens", "output_tokens")
    )
    return Workload(times, prompts, outputs, mails.cached_tokens)


def shop_days(random: np.random.Generator, rate: float, days: float) -> Workload:
    """Days with two tops, before noon and in the evening, of a height of their own, and a quiet night; on top of that
    the rate wanders by a tenth within half an hour."""
    seconds = np.arange(0.0, days * 24 * HOUR_S)
    hour, level = seconds / HOUR_S % 24, np.full(len(seconds), 0.08)
    for day in range(int(np.ceil(days))):
        mine = (seconds // (24 * HOUR_S)) == day
        for centre, width, height in ((11.0, 1.8, 0.7), (20.0, 1.5, 1.0)):
            top = height * random.uniform(0.8, 1.2) * np.exp(-0.5 * ((hour - centre) / width) ** 2)
            level = np.where(mine, np.maximum(level, top), level)
    knots = random.normal(0.0, 0.1, int(days * 48) + 2)
    wander = np.exp(np.interp(seconds / 1800.0, np.arange(len(knots)), knots))
    return with_lengths(by_second(random, rate * level * wander), random, *CHAT_LENGTHS)
