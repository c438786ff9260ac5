"""Tokens of the month: exact over processes, restarts and clocks, and never zero where they are unknown."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from baton_control.telemetry.month_counts import MonthCounts, read_counts
from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.month_meters import MonthCharge, MonthMeters, OverQuota, QuotaState
from baton_wire.messages.operator_link import MonthTotals
from baton_wire.tenant_table import TenantLimits, shard_of
from baton_wire.tenant_usage import UsageShard, decode_usage, encode_usage, month_at, month_ends_s, month_number

NOVEMBER = 1_796_083_200.0 - 10 * 86_400
DECEMBER = 1_796_083_200.0
MONTH = month_number("2026-11")


def tenant(limit: int | None, name: str = "a") -> Tenant:
    return Tenant(name, name, limits=TenantLimits(tokens_per_month=limit))


def announced(used: float = 0.0, processes: int = 1) -> MonthMeters:
    """Meters whose link has announced what the tenant used."""
    meters, counts = MonthMeters(), MonthCounts("2026-11", {"a": used} if used else {})
    meters.link_begins()
    totals, _, is_whole = counts.totals(b"x", 0, 1_000)
    meters.take(MonthTotals(MONTH, 0, processes, totals, is_whole))
    return meters


def state(meters: MonthMeters, limit: int, tokens: float, now_s: float = NOVEMBER) -> QuotaState | None:
    refusal = meters.check(tenant(limit), tokens, now_s)
    return None if refusal is None else refusal.state


def test_a_tenant_gets_its_tokens_of_the_month_and_then_none_until_the_next_one() -> None:
    meters, owner = announced(), tenant(1_000)
    for _ in range(10):
        assert meters.check(owner, 100, NOVEMBER) is None
        meters.settle(meters.charge(owner, 100), 100)
    refusal = meters.check(owner, 1, NOVEMBER)
    assert refusal == OverQuota(QuotaState.USED_UP, 1_000, 1_000, 10 * 86_400.0)
    meters.link_ends()
    assert meters.check(owner, 1, DECEMBER) is None


def test_requests_at_work_count_with_what_they_are_expected_to_take_and_in_the_end_with_what_they_took() -> None:
    meters, owner = announced(), tenant(1_000)
    charge = meters.charge(owner, 900)
    assert state(meters, 1_000, 200) is QuotaState.USED_UP
    meters.settle(charge, 50)
    assert meters.used("a") == 50
    assert state(meters, 1_000, 950) is None


def test_a_tenant_without_such_a_limit_is_neither_counted_nor_refused() -> None:
    meters = MonthMeters()
    assert meters.check(tenant(None), 1e9, NOVEMBER) is None
    meters.settle(meters.charge(tenant(None), 5), 5)
    assert meters.used("a") is None


def test_what_is_not_known_is_refused_and_not_zero() -> None:
    meters = MonthMeters()
    assert state(meters, 1_000, 1) is QuotaState.UNKNOWN
    meters.read(UsageShard(shard_of("a"), "2026-10", {"a": 5}), NOVEMBER)
    assert state(meters, 1_000, 1) is QuotaState.UNKNOWN, "the count of a former month says nothing of this one"
    meters.link_begins()
    meters.take(MonthTotals(MONTH, 0, 1, (), is_whole=False))
    assert state(meters, 1_000, 1) is QuotaState.UNKNOWN, "more totals are to come"
    meters.take(MonthTotals(MONTH, 0, 1, (), is_whole=True))
    assert state(meters, 1_000, 1) is None


def test_without_a_link_a_process_starts_from_the_file_and_has_its_part_of_the_rest() -> None:
    meters = MonthMeters(0.25)
    other = next(f"t{number}" for number in range(99) if shard_of(f"t{number}") != shard_of("a"))
    meters.read(UsageShard(shard_of("a"), "2026-11", {"a": 600}), NOVEMBER)
    assert meters.check(tenant(1_000, other), 1, NOVEMBER) is not None, "its shard was not read"
    assert state(meters, 1_000, 100) is None
    meters.charge(tenant(1_000), 100)
    assert state(meters, 1_000, 1) is QuotaState.ELSEWHERE
    assert state(meters, 1_000, 301) is QuotaState.USED_UP


def test_an_older_file_does_not_bring_back_what_was_used() -> None:
    meters = announced(900)
    meters.read(UsageShard(shard_of("a"), "2026-11", {"a": 1}), NOVEMBER)
    assert meters.used("a") == 900


def test_a_clock_that_steps_back_over_the_end_of_a_month_keeps_the_month() -> None:
    assert month_at(DECEMBER - 3_600, "2026-12") == "2026-12"
    assert month_at(DECEMBER - 2 * 86_400, "2026-12") == "2026-11", "a wrong clock was put right"
    assert [month_ends_s(month_at(now)) for now in (NOVEMBER, DECEMBER)] == [DECEMBER, DECEMBER + 31 * 86_400]
    assert month_at(-1e300) == "1970-01"
    assert month_at(1e300) > "2100-01"


def test_what_was_spent_under_a_clock_that_ran_ahead_is_not_lost() -> None:
    meters, owner = announced(100), tenant(1_000)
    meters.link_ends()
    assert meters.check(owner, 10, DECEMBER) is None
    meters.settle(meters.charge(owner, 10), 10)
    meters.link_begins()
    meters.take(MonthTotals(MONTH, 0, 1, (), is_whole=True))
    report = meters.report(10)
    assert report is not None
    assert [(use.tenant, use.spent) for use in report.uses] == [("a", 10)]


def test_a_report_that_was_not_acknowledged_is_sent_again_on_the_next_link() -> None:
    meters, owner = announced(), tenant(1_000)
    meters.settle(meters.charge(owner, 10), 10)
    first = meters.report(10)
    assert first is not None
    assert meters.report(10) is None
    meters.link_ends()
    meters.link_begins()
    meters.take(MonthTotals(MONTH, 0, 1, (), is_whole=True))
    again = meters.report(10)
    assert again is not None
    assert again.uses[0].spent == 10
    meters.take(MonthTotals(MONTH, 1, 1, (), is_whole=True))
    assert meters.report(10) is None


def test_a_saved_count_is_read_back_and_one_of_a_former_month_is_not() -> None:
    counts = MonthCounts("2026-11", {"a": 5.9, "b": 0.2, "c": 7})
    shards = {place: decode_usage(encode_usage(shard)) for place, shard in counts.shards().items()}
    assert read_counts(shards, NOVEMBER).used == {"a": 5, "c": 7}
    assert read_counts(shards, DECEMBER).used == {}
    assert read_counts(shards, DECEMBER).month == "2026-12"


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"place":99,"month":"2026-11","used":{}}',
        b'{"place":1,"month":"x","used":{}}',
        b'{"place":1,"month":"2026-11","used":{"a":-1}}',
        b"x" * (1 << 20),
    ],
)
def test_a_broken_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_usage(content)


# Several processes ----------------------------------------------------------------------------------------------------


@dataclass
class Process:
    epoch: bytes
    meters: MonthMeters = field(default_factory=lambda: MonthMeters(0.25))
    since: int = 0
    acknowledged: int = 0
    due_s: float = 0.0
    at_work: list[tuple[float, MonthCharge, float]] = field(default_factory=list)


class Deployment:
    """Gateway processes and the counts of the process that divides limits, on one virtual clock."""

    def __init__(self, num_processes: int, limit: int, seed: int) -> None:
        self.dice, self.owner, self.now = random.Random(seed), tenant(limit), 0.0
        self.counts = MonthCounts("2026-11", {})
        self.delivered = 0.0
        self.processes = [Process(bytes([number])) for number in range(num_processes)]
        for process in self.processes:
            self.link(process)

    def link(self, process: Process) -> None:
        self.counts.join(process.epoch)
        process.since = process.acknowledged = 0
        process.meters.link_ends()
        process.meters.link_begins()
        process.due_s = self.now
        self.exchange(process)

    def restart_counts(self, saved: MonthCounts) -> None:
        self.counts = read_counts(saved.shards(), NOVEMBER)
        for process in self.processes:
            self.link(process)

    def replace(self, place: int) -> None:
        """Kill a process: what its requests deliver is delivered, and nobody reports it."""
        dead = self.processes[place]
        self.counts.leave(dead.epoch)
        self.processes[place] = Process(bytes([self.dice.randrange(100, 256)]))
        self.link(self.processes[place])

    def exchange(self, process: Process) -> None:
        report = process.meters.report(1_000)
        if report is not None:
            self.counts.report(process.epoch, report)
            process.acknowledged = report.number
        totals, process.since, is_whole = self.counts.totals(process.epoch, process.since, 1_000)
        message = MonthTotals(MONTH, process.acknowledged, self.counts.num_processes, totals, is_whole=is_whole)
        process.meters.take(message)
        process.due_s += self.dice.uniform(0.5, 2.0)

    def ask(self, shares: list[float], mean_tokens: float) -> bool:
        process = self.dice.choices(self.processes, shares)[0]
        tokens = self.dice.uniform(0.5, 1.5) * mean_tokens
        if process.meters.check(self.owner, tokens, NOVEMBER) is not None:
            return False
        charge = process.meters.charge(self.owner, tokens)
        assert charge is not None
        took = tokens * self.dice.uniform(0.9, 1.1)
        process.at_work.append((self.now + self.dice.uniform(0.1, 5), charge, took))
        self.delivered += took
        return True

    def run(self, seconds: float, rate: float, shares: list[float], mean_tokens: float) -> int:
        end_s, admitted = self.now + seconds, 0
        while self.now < end_s:
            self.now += self.dice.expovariate(rate)
            for process in self.processes:
                for entry in [entry for entry in process.at_work if entry[0] <= self.now]:
                    process.at_work.remove(entry)
                    process.meters.settle(entry[1], entry[2])
                if process.due_s <= self.now:
                    self.exchange(process)
            admitted += self.ask(shares, mean_tokens)
        return admitted


@pytest.mark.parametrize("shares", [[1, 1, 1, 1], [1, 0, 0, 0], [70, 20, 9, 1]])
@pytest.mark.parametrize("seed", range(2))
def test_four_processes_give_out_the_month_within_five_percent(shares: list[float], seed: int) -> None:
    world = Deployment(4, 100_000, seed)
    world.run(150, 20, shares, 100)
    assert 0.95 * 100_000 <= world.delivered <= 1.05 * 100_000


def test_a_restart_of_the_counting_process_forgets_nothing_that_a_gateway_knows() -> None:
    world = Deployment(4, 100_000, 1)
    world.run(3, 50, [1, 1, 1, 1], 100)
    saved = read_counts(world.counts.shards(), NOVEMBER)
    world.run(6, 50, [1, 1, 1, 1], 100)
    before = world.counts.used["a"]
    world.restart_counts(saved)
    world.run(5, 1, [1, 1, 1, 1], 100)
    assert world.counts.used["a"] >= before
    world.run(40, 50, [1, 1, 1, 1], 100)
    assert 0.95 * 100_000 <= world.delivered <= 1.05 * 100_000


def test_killed_processes_lose_at_most_what_they_had_at_work() -> None:
    world = Deployment(4, 200_000, 2)
    at_work = 0.0
    for place in range(4):
        world.run(4, 50, [1, 1, 1, 1], 100)
        dead = world.processes[place].meters
        at_work += (dead.used("a") or 0) - world.counts.used["a"] + 1_000
        world.replace(place)
    world.run(60, 50, [1, 1, 1, 1], 100)
    assert 0.95 * 200_000 <= world.delivered <= 1.05 * 200_000 + at_work


def test_without_a_link_processes_together_take_no_more_than_was_left() -> None:
    world = Deployment(4, 100_000, 3)
    world.run(4, 50, [1, 1, 1, 1], 100)
    for process in world.processes:
        process.meters.link_ends()
        process.due_s = float("inf")
    world.run(60, 50, [1, 1, 1, 1], 100)
    assert 0.9 * 100_000 <= world.delivered <= 1.05 * 100_000
