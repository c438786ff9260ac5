"""Generators of the loads on which sizing rules are compared: each draws anew from the random numbers it is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baton_control.sizing.inputs.workload import Floats, Workload
from baton_simulate.synthetic import Shape, synthetic

Lengths = tuple[tuple[float, float], tuple[float, float]]
"""Median and sigma of log-normal prompts and of answers."""
CHAT_LENGTHS: Lengths = ((800.0, 0.7), (300.0, 0.7))
CODE_LENGTHS: Lengths = ((6000.0, 0.6), (60.0, 0.7))
HOUR_S = 3600.0
Turn = tuple[float, float, Lengths]
"""Seconds, requests per second and their lengths."""


def turns(random: np.random.Generator, seconds: float = 300.0, count: int = 6) -> Workload:
    """Chat and code in turns."""
    return _in_turns(random, ((seconds, 8.0, CHAT_LENGTHS), (seconds, 3.0, CODE_LENGTHS)), count)


def clients(random: np.random.Generator, rate: float, hours: float, count: int = 40, tide: float = 0.0) -> Workload:
    """Many clients with rates of their own (log-normal), each bursty (gamma gaps, variance 4), under one tide: a sine
    of six hours that takes `tide` off the rate at its lowest."""
    shares = random.lognormal(0.0, 1.0, count)
    duration_s = hours * HOUR_S
    gaps = [_bursty(random, rate * share, duration_s) for share in shares / shares.sum()]
    times = np.sort(np.concatenate(gaps))
    low = 1.0 - tide * (0.5 - 0.5 * np.cos(2 * np.pi * times / (6 * HOUR_S) + np.pi))
    times = times[random.uniform(0.0, 1.0, len(times)) < low]
    return with_lengths(times, random, *CHAT_LENGTHS)


def on_off(random: np.random.Generator, low: float, high: float, hours: float) -> Workload:
    """A rate that jumps between two: low for eight minutes, high for three, both exponential."""
    at, is_high, parts = 0.0, False, []
    while at < hours * HOUR_S:
        seconds = random.exponential(180.0 if is_high else 480.0)
        count = random.poisson((high if is_high else low) * seconds)
        parts.append(np.sort(random.uniform(at, at + seconds, count)))
        at, is_high = at + seconds, not is_high
    times = np.concatenate(parts)
    return with_lengths(times[times < hours * HOUR_S], random, *CHAT_LENGTHS)


def sessions(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Conversations of one to many turns (geometric, six in the mean): each prompt has all that was said before, which
    is cached but for the newest part; thought about for half a minute in the mean between two turns."""
    rows: list[tuple[float, int, int, int]] = []
    for start in np.sort(random.uniform(0.0, hours * HOUR_S, random.poisson(rate / 6 * hours * HOUR_S))):
        at, context = float(start), 0
        for _ in range(random.geometric(1 / 6)):
            asked, answer = int(random.lognormal(np.log(1500), 1.0)) + 1, int(random.lognormal(np.log(200), 0.8)) + 1
            if context + asked > 32_768:
                break
            rows.append((at, context + asked, answer, context))
            context += asked + answer
            at += 5.0 + random.exponential(30.0)
    rows = sorted(row for row in rows if row[0] < hours * HOUR_S)
    times, prompts, outputs, cached = (np.array(column) for column in zip(*rows, strict=True))
    return Workload(times, prompts, outputs, cached)


def flash_crowds(random: np.random.Generator, rate: float, times: float, hours: float) -> Workload:
    """A steady rate and two crowds: within half a minute `times` as many, which halve every five minutes."""
    seconds = np.arange(0.0, hours * HOUR_S)
    extra = np.zeros(len(seconds))
    for start in random.uniform(0.1, 0.45, 1).tolist() + random.uniform(0.55, 0.85, 1).tolist():
        since = seconds - start * hours * HOUR_S
        risen = np.clip(since / 30.0, 0.0, 1.0)
        extra = np.maximum(extra, risen * 0.5 ** (np.maximum(0.0, since - 30.0) / 300.0))
    return with_lengths(by_second(random, rate * (1.0 + (times - 1.0) * extra)), random, *CHAT_LENGTHS)


def wandering(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A rate whose logarithm wanders about its mean (deviation 0.5) and forgets within ten minutes. Each is chat
    or a question to documents, in a share that wanders too.
    """

    def wander() -> Floats:
        steps, decay = random.normal(0.0, 1.0, int(hours * HOUR_S / 10)), np.exp(-10.0 / 600.0)
        level, levels = random.normal(), []
        for step in steps:
            level = decay * level + np.sqrt(1 - decay**2) * step
            levels.append(level)
        return np.repeat(np.array(levels), 10)

    times = by_second(random, rate * np.exp(0.5 * wander()))
    share = 1.0 / (1.0 + np.exp(-1.5 - 1.5 * wander()))
    load = with_lengths(times, random, *CHAT_LENGTHS)
    long = with_lengths(times, random, (4000.0, 0.5), (150.0, 0.7))
    is_chat = random.uniform(0.0, 1.0, len(times)) < share[np.minimum(len(share) - 1, times.astype(np.int64))]
    prompts, outputs = (
        np.where(is_chat, getattr(load, name), getattr(long, name)) for name in ("prompt_tokens", "output_tokens")
    )
    return Workload(times, prompts, outputs, load.cached_tokens)


def with_batches(random: np.random.Generator, rate: float, size: int, hours: float) -> Workload:
    """Calm chat, and programs that send `size` requests within five seconds, every four minutes in the mean."""
    calm = np.sort(random.uniform(0.0, hours * HOUR_S, random.poisson(rate * hours * HOUR_S)))
    starts = random.uniform(0.0, hours * HOUR_S - 5.0, random.poisson(hours * HOUR_S / 240.0))
    batches = [start + random.uniform(0.0, 5.0, size) for start in starts]
    return with_lengths(np.sort(np.concatenate([calm, *batches])), random, *CHAT_LENGTHS)


def essays_and_papers(random: np.random.Generator, seconds: float = 300.0, count: int = 8) -> Workload:
    """Short questions with answers of 1,100 tokens, then papers of 6,000 tokens with short answers, in turns: what the
    one pool needs less of, the other needs more."""
    essays: Turn = (seconds, 16.0, ((500.0, 0.5), (1100.0, 0.4)))
    return _in_turns(random, (essays, (seconds, 4.0, CODE_LENGTHS)), count)


def letters_and_books(random: np.random.Generator, count: int = 9) -> Workload:
    """Letters of 600 tokens for seven minutes, then questions to books of 11,000 tokens for four, in turns."""
    letters: Turn = (420.0, 24.0, ((150.0, 0.6), (600.0, 0.6)))
    return _in_turns(random, (letters, (240.0, 2.5, ((11_000.0, 0.4), (150.0, 0.6)))), count)


def _in_turns(random: np.random.Generator, kinds: Sequence[Turn], count: int) -> Workload:
    load: Workload | None = None
    for turn in range(count):
        seconds, rate, (prompt, output) = kinds[turn % len(kinds)]
        part = synthetic(Shape.STEADY, rate, seconds, random, prompt=prompt, output=output)
        load = part if load is None else load.then(part)
    assert load is not None
    return load


def office_days(random: np.random.Generator, rate: float, days: float, night: float = 0.1) -> Workload:
    """Days of 24 hours: `rate` in office hours from 8 to 18, `night` of it otherwise, an hour of slope between them;
    each day up to 15 % more or less than another."""
    seconds = np.arange(0.0, days * 24 * HOUR_S)
    hour = seconds / HOUR_S % 24
    level = night + (1.0 - night) * np.clip(np.minimum(hour - 8.0, 19.0 - hour), 0.0, 1.0)
    day_factor = random.uniform(0.85, 1.15, int(np.ceil(days)))[(seconds // (24 * HOUR_S)).astype(np.int64)]
    return with_lengths(by_second(random, rate * level * day_factor), random, *CHAT_LENGTHS)


def waves(
    random: np.random.Generator, low: float, high: float, period_s: float, wave_s: float, hours: float
) -> Workload:
    """Every `period_s`, up to a tenth earlier or later, the rate rises evenly over a third of `wave_s` to `high` times
    0.8 to 1.2, and falls evenly over the rest."""
    seconds = np.arange(0.0, hours * HOUR_S)
    extra = np.zeros(len(seconds))
    for number in range(int(hours * HOUR_S / period_s) + 1):
        since = seconds - (number + random.uniform(-0.1, 0.1)) * period_s
        wave = np.clip(np.minimum(since / (wave_s / 3), (wave_s - since) / (wave_s * 2 / 3)), 0.0, 1.0)
        extra = np.maximum(extra, random.uniform(0.8, 1.2) * wave)
    return with_lengths(by_second(random, low + (high - low) * extra), random, *CHAT_LENGTHS)


def contagious(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Arrivals that draw others after them (Hawkes): each brings 0.7 more in the mean, half of them within 20 s."""
    duration_s = hours * HOUR_S
    born = random.uniform(0.0, duration_s, random.poisson(0.3 * rate * duration_s))
    times = [born]
    while len(born):
        children = random.poisson(0.7, len(born))
        born = np.repeat(born, children) + random.exponential(20.0 / np.log(2.0), int(children.sum()))
        born = born[born < duration_s]
        times.append(born)
    return with_lengths(np.sort(np.concatenate(times)), random, *CHAT_LENGTHS)


def levels(random: np.random.Generator, low: float, high: float, hours: float) -> Workload:
    """Rates that stay, drawn evenly in their logarithm, each for four minutes or longer (Pareto, shape 1.5)."""
    at, parts = 0.0, []
    while at < hours * HOUR_S:
        seconds = 240.0 * (1.0 + random.pareto(1.5))
        rate = np.exp(random.uniform(np.log(low), np.log(high)))
        parts.append(np.sort(random.uniform(at, at + seconds, random.poisson(rate * seconds))))
        at += seconds
    times = np.concatenate(parts)
    return with_lengths(times[times < hours * HOUR_S], random, *CHAT_LENGTHS)


def shifts(random: np.random.Generator, hours: float) -> Workload:
    """Three kinds of work in turns of uneven length, three minutes to nine: reports to write, files to read, chat."""
    kinds: Sequence[tuple[float, Lengths]] = (
        (3.5, ((300.0, 0.6), (1500.0, 0.5))),
        (4.0, ((7500.0, 0.5), (90.0, 0.6))),
        (7.0, ((1000.0, 0.8), (220.0, 0.8))),
    )
    load, kind = None, int(random.integers(3))
    while load is None or load.duration_s < hours * HOUR_S:
        rate, (prompt, output) = kinds[kind]
        part = synthetic(Shape.STEADY, rate, random.uniform(180.0, 540.0), random, prompt=prompt, output=output)
        load = part if load is None else load.then(part)
        kind = int(kind + random.integers(1, 3)) % 3
    return load.between(0.0, hours * HOUR_S)


def growing_desks(random: np.random.Generator, rate: float, hours: float, count: int = 25) -> Workload:
    """Desks that open one after another in the first two thirds and stay, each with Weibull gaps (shape 0.6)."""
    rate_each, duration_s = rate / count, hours * HOUR_S
    times = []
    for start in random.uniform(0.0, duration_s * 2 / 3, count) * (np.arange(count) >= count // 3):
        gaps = (
            random.weibull(0.6, int(rate_each * duration_s * 1.5) + 50) / rate_each / 1.5046
        )  # the mean of that shape
        times.append((arrivals := start + np.cumsum(gaps))[arrivals < duration_s])
    return with_lengths(np.sort(np.concatenate(times)), random, (1400.0, 0.9), (180.0, 0.8))


def documents(random: np.random.Generator, hours: float) -> Workload:
    """Chat, and among it documents of 16,000 tokens in the median, whose rate swells and ebbs by a sine of 25 minutes
    that no wave repeats in height."""
    seconds = np.arange(0.0, hours * HOUR_S)
    heights = random.uniform(0.4, 1.6, int(hours * HOUR_S / 1500.0) + 2)[(seconds / 1500.0).astype(np.int64)]
    swell = heights * (0.5 - 0.5 * np.cos(2 * np.pi * seconds / 1500.0))
    chat = with_lengths(by_second(random, np.full(len(seconds), 3.0)), random, *CHAT_LENGTHS)
    long = with_lengths(by_second(random, 0.3 + 2.0 * swell), random, (16_000.0, 0.5), (120.0, 0.7))
    times = np.concatenate([chat.arrival_s, long.arrival_s])
    prompts = np.concatenate([chat.prompt_tokens, long.prompt_tokens])
    outputs = np.concatenate([chat.output_tokens, long.output_tokens])
    order = np.argsort(times, kind="stable")
    return Workload(times[order], prompts[order], outputs[order], np.zeros(len(times), dtype=np.int64))


def jobs(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Calm chat, and programs that begin by chance, one in 100 s: each sends at a rate of its own (log-normal, 1.5/s in
    the median) for a minute or longer (Pareto, shape 1.4). Their sum is bursty on every scale."""
    duration_s = hours * HOUR_S
    times = [random.uniform(0.0, duration_s, random.poisson(rate * duration_s))]
    for start in random.uniform(-HOUR_S, duration_s, random.poisson((duration_s + HOUR_S) / 100.0)):
        seconds, factor = 60.0 * (1.0 + random.pareto(1.4)), random.lognormal(np.log(1.5), 0.6)
        sent = random.uniform(start, start + seconds, random.poisson(factor * seconds))
        times.append(sent[(sent >= 0.0) & (sent < duration_s)])
    return with_lengths(np.sort(np.concatenate(times)), random, *CHAT_LENGTHS)


def bells(
    random: np.random.Generator, low: float, high: float, hours: float, lengths: Lengths = CHAT_LENGTHS, count: int = 4
) -> Workload:
    """A steady rate, and `count` swells at random times, each up to `high` times 0.5 to 1.2, of a deviation between
    two and seven minutes."""
    seconds = np.arange(0.0, hours * HOUR_S)
    extra = np.zeros(len(seconds))
    for centre in random.uniform(0.1, 0.95, count) * hours * HOUR_S:
        width, height = random.uniform(120.0, 420.0), random.uniform(0.5, 1.2)
        extra = np.maximum(extra, height * np.exp(-0.5 * ((seconds - centre) / width) ** 2))
    return with_lengths(by_second(random, low + (high - low) * extra), random, *lengths)


def drifting(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A rate that stays, while prompts grow evenly in their logarithm from 500 to 5,000 tokens in the median and
    answers shrink from 500 to 80."""
    times = by_second(random, np.full(int(hours * HOUR_S), rate))
    grown = times / (hours * HOUR_S)
    load = with_lengths(times, random, (1.0, 0.0), (1.0, 0.0))
    prompts = np.exp(np.log(500.0) + np.log(10.0) * grown + random.normal(0.0, 0.6, len(times)))
    outputs = np.exp(np.log(500.0) - np.log(500.0 / 80.0) * grown + random.normal(0.0, 0.6, len(times)))
    prompts, outputs = np.clip(prompts, 1, 32_768).astype(np.int64), np.clip(outputs, 1, 4096).astype(np.int64)
    return Workload(load.arrival_s, prompts, outputs, load.cached_tokens)


def swaying(random: np.random.Generator, hours: float, period_s: float = 1100.0) -> Workload:
    """Writing and reading whose shares sway by a sine: 14/s of 300 tokens with answers of 1,100 at one end, 4/s of
    7,000 tokens with short answers at the other."""
    seconds = np.arange(0.0, hours * HOUR_S)
    share = 0.5 - 0.5 * np.cos(2 * np.pi * seconds / period_s + random.uniform(0.0, 2 * np.pi))
    writing = with_lengths(by_second(random, 14.0 * share), random, (300.0, 0.6), (1100.0, 0.4))
    reading = with_lengths(by_second(random, 4.0 * (1.0 - share)), random, (7000.0, 0.5), (90.0, 0.6))
    order = np.argsort(np.concatenate([writing.arrival_s, reading.arrival_s]), kind="stable")
    times, prompts, outputs, cached = (
        np.concatenate([getattr(writing, name), getattr(reading, name)])[order]
        for name in ("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens")
    )
    return Workload(times, prompts, outputs, cached)


def by_second(random: np.random.Generator, rates: Floats) -> Floats:
    """Poisson arrivals at a rate of each second."""
    counts = random.poisson(rates)
    return np.sort(np.repeat(np.arange(len(rates)), counts) + random.uniform(0.0, 1.0, int(counts.sum())))


def _bursty(random: np.random.Generator, rate: float, duration_s: float) -> Floats:
    count = int(rate * duration_s * 1.5) + 50
    return (times := np.cumsum(random.gamma(0.25, 4.0 / rate, count)))[times < duration_s]


def with_lengths(
    times: Floats, random: np.random.Generator, prompt: tuple[float, float], output: tuple[float, float]
) -> Workload:
    count = len(times)
    prompts = np.clip(random.lognormal(np.log(prompt[0]), prompt[1], count), 1, 32_768).astype(np.int64)
    outputs = np.clip(random.lognormal(np.log(output[0]), output[1], count), 1, 4096).astype(np.int64)
    return Workload(times, prompts, outputs, np.zeros(count, dtype=np.int64))
