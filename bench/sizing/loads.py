"""Loads on which a sizing rule is chosen, and others on which it is judged; no part of a trace and no kind of load is
in both. A test set that was looked at is *former-test*: rules may be chosen on it, too. A new *test* is written before
the next rule is chosen.

Every load is drawn anew from each seed. Traces come from a folder that the user names; a load whose file is not
there is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from bench.sizing.clumpy_generators import auctions, evaluations, few_tenants, reviews, stories, tickets
from bench.sizing.generators import (
    HOUR_S,
    bells,
    clients,
    contagious,
    documents,
    drifting,
    essays_and_papers,
    flash_crowds,
    growing_desks,
    jobs,
    letters_and_books,
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
from bench.sizing.scenarios import CHAT, CHAT_SPEC, LONG, LONG_SPEC, Case
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

from baton_control.sizing.inputs.workload import Workload
from baton_simulate.synthetic import Shape, synthetic
from baton_simulate.trace_files import read_trace

CONV, MOONCAKE, DAYS = "azure_llm_2023_conv.csv", "mooncake_synthetic.jsonl", "servegen_mid_2days.csv.gz"

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
    Load("essays and papers in turns", lambda traces, random: essays_and_papers(random)),
    Load("letters and books in turns", lambda traces, random: letters_and_books(random)),
    Load("office days", lambda traces, random: office_days(random, 4.0, 2.5)),
)
FORMER_TEST = (
    Load("conv, last part x3", _part(CONV, 2700.0, 3510.0, 3.0)),
    Load("an evening of the first day x4", _part(DAYS, 18 * HOUR_S, 19.5 * HOUR_S, 4.0)),
    Load("a morning of the first day x5", _part(DAYS, 6 * HOUR_S, 8 * HOUR_S, 5.0)),
    Load("sessions of several turns", lambda traces, random: sessions(random, 1.2, 1.0), is_long=True),
    Load("flash crowds", lambda traces, random: flash_crowds(random, 4.0, 4.0, 1.5)),
    Load("a wandering rate", lambda traces, random: wandering(random, 6.0, 1.5)),
    Load("calm chat with batches", lambda traces, random: with_batches(random, 4.0, 60, 1.0)),
    Load("an afternoon of the first day x4", _part(DAYS, 12.5 * HOUR_S, 15.5 * HOUR_S, 4.0)),
    Load("a night of the second day x6", _part(DAYS, 42 * HOUR_S, 45 * HOUR_S, 6.0)),
    Load("waves every eight minutes", lambda traces, random: waves(random, 2.5, 9.0, 480.0, 150.0, 1.5)),
    Load("contagious requests", lambda traces, random: contagious(random, 6.0, 1.5)),
    Load("levels that stay", lambda traces, random: levels(random, 2.0, 11.0, 1.5)),
    Load("shifts of three kinds", lambda traces, random: shifts(random, 1.0)),
    Load("growing desks", lambda traces, random: growing_desks(random, 9.0, 2.0)),
    Load("documents in waves", lambda traces, random: documents(random, 1.0), is_long=True),
    Load("a late evening of the first day x5", _part(DAYS, 21 * HOUR_S, 22.5 * HOUR_S, 5.0)),
    Load("a noon of the second day x5", _part(DAYS, 35 * HOUR_S, 36.5 * HOUR_S, 5.0)),
    Load("jobs of programs", lambda traces, random: jobs(random, 3.0, 1.0)),
    Load("swells", lambda traces, random: bells(random, 3.0, 12.0, 1.0)),
    Load("prompts that grow", lambda traces, random: drifting(random, 6.0, 1.0)),
    Load("writing and reading that sway", lambda traces, random: swaying(random, 1.0)),
    Load(
        "swells of documents",
        lambda traces, random: bells(random, 0.5, 2.5, 1.0, ((14_000.0, 0.6), (150.0, 0.7))),
        is_long=True,
    ),
    Load("a forenoon of the first day x5", _part(DAYS, 8 * HOUR_S, 10 * HOUR_S, 5.0)),
    Load("a late afternoon of the first day x5", _part(DAYS, 15.5 * HOUR_S, 17 * HOUR_S, 5.0)),
    Load("a midday of the second day x5", _part(DAYS, 36.5 * HOUR_S, 38 * HOUR_S, 5.0)),
    Load("a rollout in steps", lambda traces, random: rollout(random, 12.0, 0.95)),
    Load("jobs by timers", lambda traces, random: timers(random, 4.0, 0.75)),
    Load("groups of agents", lambda traces, random: agents(random, 18.0, 0.75), is_long=True),
    Load("a rate like itself", lambda traces, random: self_similar(random, 7.0, 0.9)),
    Load("contracts that get fewer", lambda traces, random: contracts(random, 9.0, 2.0, 0.8), is_long=True),
    Load("shop days", lambda traces, random: shop_days(random, 5.0, 1.5)),
    Load("a night of the first day x6", _part(DAYS, 0.0, 5 * HOUR_S, 6.0)),
    Load("a late forenoon of the first day x5", _part(DAYS, 11 * HOUR_S, 12.5 * HOUR_S, 5.0)),
    Load("an early night of the first day x5", _part(DAYS, 19.5 * HOUR_S, 21 * HOUR_S, 5.0)),
    Load("the last hours of the second day x6", _part(DAYS, 45 * HOUR_S, 48 * HOUR_S, 6.0)),
    Load("a match with goals", lambda traces, random: match(random, 5.0, 0.9)),
    Load("lessons", lambda traces, random: lessons(random, 8.0, 0.95)),
    Load("failovers of a region", lambda traces, random: failovers(random, 6.0, 0.85)),
    Load("translations of files", lambda traces, random: translations(random, 240.0, 0.75)),
    Load("thinking that comes and goes", lambda traces, random: thinking(random, 7.0, 0.8)),
    Load("a day with batches at night", lambda traces, random: day_and_batches(random, 15.0, 20.0)),
    Load("the end of the first afternoon x5", _part(DAYS, 17 * HOUR_S, 18 * HOUR_S, 5.0)),
    Load("an hour before the second noon x5", _part(DAYS, 34 * HOUR_S, 35 * HOUR_S, 5.0)),
    Load("mailings", lambda traces, random: mailings(random, 4.0, 0.8)),
    Load("questions to an archive", lambda traces, random: archives(random, 3.5, 0.75), is_long=True),
    Load("studios that write and read", lambda traces, random: studios(random, 0.8)),
    Load("interviews on the quarter", lambda traces, random: interviews(random, 40.0, 0.9), is_long=True),
    Load("a relay of regions", lambda traces, random: relays(random, 8.0, 1.2)),
    Load("outages of a network", lambda traces, random: outages(random, 7.0, 0.9)),
    Load("around the first midnight x15", _part(DAYS, 22.5 * HOUR_S, 24 * HOUR_S, 15.0)),
    Load("the small hours of the second day x18", _part(DAYS, 24 * HOUR_S, 26 * HOUR_S, 18.0)),
    Load("an hour of the second afternoon x14", _part(DAYS, 41 * HOUR_S, 42 * HOUR_S, 14.0)),
    Load("reviews of pushes", lambda traces, random: reviews(random, 6.0, 0.9)),
    Load("auctions", lambda traces, random: auctions(random, 12.0, 0.9)),
    Load("sales of tickets", lambda traces, random: tickets(random, 6.0, 0.9)),
    Load("stories", lambda traces, random: stories(random, 10.0, 0.9)),
    Load("a few tenants", lambda traces, random: few_tenants(random, 7.0, 0.95)),
    Load("evaluations of prompts", lambda traces, random: evaluations(random, 6.0, 0.9)),
    Load("before the first dawn x20", _part(DAYS, 5 * HOUR_S, 5.6 * HOUR_S, 20.0)),
    Load("caches that get cold", lambda traces, random: cold_caches(random, 9.0, 0.75)),
    Load("quotas by the minute", lambda traces, random: quotas(random, 6.0, 0.75)),
    Load("answers that get longer", lambda traces, random: verbose_answers(random, 11.0, 0.75)),
    Load("days in an hour", lambda traces, random: short_days(random, 14.0, 2700.0, 0.95)),
    Load("aftershocks", lambda traces, random: aftershocks(random, 5.0, 0.75)),
    Load("chat with papers", lambda traces, random: attachments(random, 6.0, 0.75)),
    Load("launches", lambda traces, random: launches(random, 5.0, 0.9)),
    Load("renderings", lambda traces, random: renderings(random, 18.0, 0.75), is_long=True),
)
"""Looked at on 2026-11-23, with two candidates that lost; eight loads, from the afternoon on, with the rule of
2026-11-25, four with a candidate of that day that lost, three with the rule of 2026-11-26; nine with that rule and
tuned peers; the next with the rule that followed it that day; nine with the rule of 2026-11-27, eight
with the simulator that defers prompts, nine with the half hour that is filled with the forecast, nine with clients that
cap the simulator."""
TEST: tuple[Load, ...] = ()
"""Some are to be written before the next rule is chosen. Of the two days' trace 24 minutes are in no set."""
SPLITS = {"development": DEVELOPMENT, "former-test": FORMER_TEST, "test": TEST}


def split(name: str) -> tuple[Load, ...]:
    return SPLITS[name]
