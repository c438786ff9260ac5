"""Loads on which a sizing rule is chosen, and others on which it is judged; no part of a trace and no kind of load is
in both. A test set that was looked at becomes development, and a new one is written before the next rule is chosen.

Every load is drawn anew from each seed. Traces come from a folder that the user names; a load whose file is not
there is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from bench.sizing.scenarios import CHAT, CHAT_SPEC, LONG, LONG_SPEC, Case

from baton_control.sizing.workload import Floats, Workload
from baton_simulate.synthetic import Shape, synthetic
from baton_simulate.trace_files import read_trace

CONV, MOONCAKE, DAYS = "azure_llm_2023_conv.csv", "mooncake_synthetic.jsonl", "servegen_mid_2days.csv.gz"
CHAT_LENGTHS, CODE_LENGTHS = ((800.0, 0.7), (300.0, 0.7)), ((6000.0, 0.6), (60.0, 0.7))
"""Median and sigma of prompts and of answers."""
HOUR_S = 3600.0

Draw = Callable[[Path, np.random.Generator], Workload]


@dataclass(frozen=True, slots=True)
class Load:
    name: str
    draw: Draw
    is_long: bool = False
    """Long prompts on one H200 a worker, instead of chat with 70B on two."""

    def case(self, traces: Path, seed: int) -> Case:
        """Raises FileNotFoundError without its trace."""
        model, spec = (LONG, LONG_SPEC) if self.is_long else (CHAT, CHAT_SPEC)
        return Case(self.name, self.draw(traces, np.random.default_rng(seed)), model, spec)


def turns(random: np.random.Generator, seconds: float = 300.0, count: int = 6) -> Workload:
    """Chat and code in turns."""
    load: Workload | None = None
    for turn in range(count):
        (prompt, output), rate = (CHAT_LENGTHS, 8.0) if turn % 2 == 0 else (CODE_LENGTHS, 3.0)
        part = synthetic(Shape.STEADY, rate, seconds, random, prompt=prompt, output=output)
        load = part if load is None else load.then(part)
    assert load is not None
    return load


def clients(random: np.random.Generator, rate: float, hours: float, count: int = 40, tide: float = 0.0) -> Workload:
    """Many clients with rates of their own (log-normal), each bursty (gamma gaps, variance 4), under one tide: a sine
    of six hours that takes `tide` off the rate at its lowest."""
    shares = random.lognormal(0.0, 1.0, count)
    duration_s = hours * HOUR_S
    gaps = [_bursty(random, rate * share, duration_s) for share in shares / shares.sum()]
    times = np.sort(np.concatenate(gaps))
    low = 1.0 - tide * (0.5 - 0.5 * np.cos(2 * np.pi * times / (6 * HOUR_S) + np.pi))
    times = times[random.uniform(0.0, 1.0, len(times)) < low]
    return _with_lengths(times, random, *CHAT_LENGTHS)


def on_off(random: np.random.Generator, low: float, high: float, hours: float) -> Workload:
    """A rate that jumps between two: low for eight minutes, high for three, both exponential."""
    at, is_high, parts = 0.0, False, []
    while at < hours * HOUR_S:
        seconds = random.exponential(180.0 if is_high else 480.0)
        count = random.poisson((high if is_high else low) * seconds)
        parts.append(np.sort(random.uniform(at, at + seconds, count)))
        at, is_high = at + seconds, not is_high
    times = np.concatenate(parts)
    return _with_lengths(times[times < hours * HOUR_S], random, *CHAT_LENGTHS)


def sessions(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """Conversations of one to many turns (geometric, six in the mean): each prompt has all that was said before, which
    is cached but for the newest part; thought about for half a minute in the mean between two turns."""
    rows: list[tuple[float, int, int, int]] = []
    for start in np.sort(random.uniform(0.0, hours * HOUR_S, random.poisson(rate / 6 * hours * HOUR_S))):
        at, said = float(start), 0
        for _ in range(random.geometric(1 / 6)):
            asked, answer = int(random.lognormal(np.log(1500), 1.0)) + 1, int(random.lognormal(np.log(200), 0.8)) + 1
            if said + asked > 32_768:
                break
            rows.append((at, said + asked, answer, said))
            said += asked + answer
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
    return _with_lengths(_by_second(random, rate * (1.0 + (times - 1.0) * extra)), random, *CHAT_LENGTHS)


def wandering(random: np.random.Generator, rate: float, hours: float) -> Workload:
    """A rate whose logarithm wanders about its mean (deviation 0.5) and forgets within ten minutes. Each is chat
    or a question to documents, in a share that wanders too.
    """

    def wander() -> Floats:
        steps, kept = random.normal(0.0, 1.0, int(hours * HOUR_S / 10)), np.exp(-10.0 / 600.0)
        level, levels = random.normal(), []
        for step in steps:
            level = kept * level + np.sqrt(1 - kept**2) * step
            levels.append(level)
        return np.repeat(np.array(levels), 10)

    times = _by_second(random, rate * np.exp(0.5 * wander()))
    share = 1.0 / (1.0 + np.exp(-1.5 - 1.5 * wander()))
    load = _with_lengths(times, random, *CHAT_LENGTHS)
    long = _with_lengths(times, random, (4000.0, 0.5), (150.0, 0.7))
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
    return _with_lengths(np.sort(np.concatenate([calm, *batches])), random, *CHAT_LENGTHS)


def _by_second(random: np.random.Generator, rates: Floats) -> Floats:
    """Poisson arrivals at a rate of each second."""
    counts = random.poisson(rates)
    return np.sort(np.repeat(np.arange(len(rates)), counts) + random.uniform(0.0, 1.0, int(counts.sum())))


def _bursty(random: np.random.Generator, rate: float, duration_s: float) -> Floats:
    count = int(rate * duration_s * 1.5) + 50
    return (times := np.cumsum(random.gamma(0.25, 4.0 / rate, count)))[times < duration_s]


def _with_lengths(
    times: Floats, random: np.random.Generator, prompt: tuple[float, float], output: tuple[float, float]
) -> Workload:
    count = len(times)
    prompts = np.clip(random.lognormal(np.log(prompt[0]), prompt[1], count), 1, 32_768).astype(np.int64)
    outputs = np.clip(random.lognormal(np.log(output[0]), output[1], count), 1, 4096).astype(np.int64)
    return Workload(times, prompts, outputs, np.zeros(count, dtype=np.int64))


@lru_cache(maxsize=4)
def _trace(path: Path) -> Workload:
    return read_trace(path)


def _part(file: str, start_s: float, end_s: float, times: float) -> Draw:
    return lambda traces, random: _trace(traces / file).between(start_s, end_s).rate_scaled(times, random)


def _bursts(traces: Path, random: np.random.Generator) -> Workload:
    return synthetic(Shape.BURST, 12.0, 1200.0, random, lengths=_trace(traces / CONV))


DEVELOPMENT = (
    Load("conv, first part x2", _part(CONV, 0.0, 1300.0, 2.0)),
    Load("conv, second part x2", _part(CONV, 1400.0, 2700.0, 2.0)),
    Load("bursts of a minute", _bursts),
    Load("chat and code in turns", lambda traces, random: turns(random)),
    Load("calm clients, 2 h", lambda traces, random: clients(random, 8.0, 2.0)),
    Load("clients with a tide, 4 h", lambda traces, random: clients(random, 10.0, 4.0, tide=0.7)),
    Load("mooncake x2", _part(MOONCAKE, 0.0, HOUR_S, 2.0), is_long=True),
    Load(
        "heavy tails",
        lambda traces, random: synthetic(Shape.STEADY, 4.0, 2400.0, random, prompt=(7000.0, 1.1), output=(150.0, 0.8)),
        is_long=True,
    ),
    Load("on and off, 1 h", lambda traces, random: on_off(random, 3.0, 10.0, 1.0)),
    Load("an hour of the first day x5", _part(DAYS, 10 * HOUR_S, 11 * HOUR_S, 5.0)),
    Load("three hours of the second day x6", _part(DAYS, 38 * HOUR_S, 41 * HOUR_S, 6.0)),
    Load("night to noon x4", _part(DAYS, 26 * HOUR_S, 34 * HOUR_S, 4.0)),
)
TEST = (
    Load("conv, last part x3", _part(CONV, 2700.0, 3510.0, 3.0)),
    Load("an evening of the first day x4", _part(DAYS, 18 * HOUR_S, 19.5 * HOUR_S, 4.0)),
    Load("a morning of the first day x5", _part(DAYS, 6 * HOUR_S, 8 * HOUR_S, 5.0)),
    Load("sessions of several turns", lambda traces, random: sessions(random, 1.2, 1.0), is_long=True),
    Load("flash crowds", lambda traces, random: flash_crowds(random, 4.0, 4.0, 1.5)),
    Load("a wandering rate", lambda traces, random: wandering(random, 6.0, 1.5)),
    Load("calm chat with batches", lambda traces, random: with_batches(random, 4.0, 60, 1.0)),
)


def split(name: str) -> tuple[Load, ...]:
    return {"development": DEVELOPMENT, "test": TEST}[name]
