"""Many tenants in an overload, and one at its worst next to another: the relay on virtual time.

    python -m bench tenants_overload [--tenants 200] [--times 3] [--seconds 60] [--seeds 3] [--only beside weights]

Goodput is answers whose first token came within the target, in percent of what the workers can do. A few of the
requests that are refused are let in all the same: their waits show whether the predicted waits are honest. The
figures are the rules' and not the machine's: the workers only keep time.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass, field
from typing import Any, Final

from bench.machine import this_machine
from bench.results import Cell, percentile, publish

from baton_gateway.errors import Problem
from baton_gateway.requests.tenant import Tenant
from baton_testing.gateway.virtual_pool import Client, VirtualPool

TTFT_S: Final = 0.5
TOKEN_S: Final = 5e-5
SETTLING_S: Final = 5.0
LET_IN: Final = 0.03
"""The share of refused requests that is let in."""
PROMPTS: Final = {"prompts of one length": (1_000, 0.0), "mixed prompts": (1_000, 0.8)}
"""Median and sigma (log-normal) of their tokens."""
OUTPUT_TOKENS: Final = {"": 20, ", long answers": 300}
OVERLOAD_COLUMNS: Final = (
    *("load", "offered/s", "goodput %", "late %", "refused %", "most MB held", "least/most served"),
    *("told wait s", "real wait s", "told / real"),
)
BESIDE_COLUMNS: Final = (
    *("the other one", "asked", "refused", "in time %", "ttft_p50_s", "ttft_p95_s", "answer_p95_s"),
    "theirs served/s",
)
WEIGHT_COLUMNS: Final = ("what is short", "tokens of a request", "weights", "share / weight", "farthest off %")


@dataclass(slots=True)
class LetIn:
    """Refusals that are not carried out: the predicted wait, by the client that was let in all the same."""

    pool: VirtualPool
    dice: random.Random
    predicted: list[tuple[float, Client]] = field(default_factory=list)
    _wait_s: float | None = None

    def __post_init__(self) -> None:
        lines: Any = self.pool.relay._loads
        decide = lines.overload

        def overload(*arguments: Any) -> Problem | None:
            problem: Problem | None = decide(*arguments)
            if problem is None or self.dice.random() >= LET_IN:
                return problem
            self._wait_s = float(problem.message.split("wait of ")[1].split(" s")[0])
            return None

        lines.overload = overload

    def is_refused(self, client: Client) -> bool:
        """True if the client would have been refused."""
        wait_s, self._wait_s = self._wait_s, None
        if wait_s is not None and client.live is not None:
            self.predicted.append((wait_s, client))
            return True
        return False


def overload(name: str, tenants: int, times: float, seconds: float, seed: int, outputs: int) -> dict[str, Cell]:
    """Poisson arrivals at `times` what the prefill worker can do, of tenants that are drawn at random."""
    dice = random.Random(seed)
    median, sigma = PROMPTS[name]
    slots, step_s = (64, 0.02) if outputs < 100 else (64, 0.01)
    pool = VirtualPool(token_s=TOKEN_S, slots=slots, step_s=step_s)
    mean = statistics.fmean(median * dice.lognormvariate(0.0, sigma) for _ in range(20_000))
    capacity = min(1 / (TOKEN_S * mean), slots / (step_s * outputs))
    owners = [Tenant(f"t{number}", f"t{number}") for number in range(tenants)]
    let_in = LetIn(pool, random.Random(seed + 1))
    clients: list[Client] = []

    def ask() -> None:
        tokens = max(16, min(16_000, int(median * dice.lognormvariate(0.0, sigma))))
        client = pool.ask(dice.choice(owners), tokens, outputs)
        if not let_in.is_refused(client):
            clients.append(client)

    at_s = 1.0
    while at_s < seconds:
        pool.heap.after(at_s, ask)
        at_s += dice.expovariate(times * capacity)
    pool.run(seconds + 60.0)
    pool.close()
    counted = [client for client in clients if client.asked_s >= SETTLING_S]
    served = [client for client in counted if client.problem is None]
    good = [client for client in served if client.ttft_s <= TTFT_S]
    waits = [(wait_s, client.ttft_s) for wait_s, client in let_in.predicted if client.first_s is not None]
    by_tenant = [sum(client.tenant is owner for client in good) for owner in owners]
    return {
        "offered/s": round(times * capacity, 1),
        "goodput %": 100 * len(good) / (capacity * (seconds - SETTLING_S)),
        "late %": 100 * (len(served) - len(good)) / len(counted),
        "refused %": 100 * (len(counted) - len(served)) / len(counted),
        "most MB held": pool.most_bytes / 1e6,
        "least/most served": percentile(by_tenant, 5) / max(1, percentile(by_tenant, 95)),
        "told wait s": statistics.fmean(wait_s for wait_s, _ in waits) if waits else None,
        "real wait s": statistics.fmean(ttft_s for _, ttft_s in waits) if waits else None,
        "told / real": statistics.median(wait_s / max(0.05, ttft_s) for wait_s, ttft_s in waits) if waits else None,
    }


def mean_of(rows: list[dict[str, Cell]]) -> dict[str, Cell]:
    means: dict[str, Cell] = {}
    for column in rows[0]:
        values = [float(cell) for row in rows if isinstance(cell := row[column], int | float)]
        means[column] = statistics.fmean(values) if values else None
    return means


@dataclass(frozen=True, slots=True)
class Flood:
    """The requests that the other tenant repeats on each of its connections."""

    connections: int
    prompt_tokens: int
    output_tokens: int
    max_running: int | None = None
    stays_s: float | None = None
    """The client hangs up after so long."""


FLOODS: Final = {
    "is not there": Flood(0, 1, 1),
    "has a quota of 1, 20 connections": Flood(20, 550, 400, max_running=1),
    "150 connections of 200 tokens": Flood(150, 100, 200),
    "1,000 connections of small requests": Flood(1_000, 50, 5),
    "300 connections of 5,000 tokens": Flood(300, 100, 5_000),
    "40 connections of long prompts": Flood(40, 8_000, 20),
    "10 connections of huge prompts": Flood(10, 60_000, 2),
    "200 connections that hang up after 0.1 s": Flood(200, 500, 500, stays_s=0.1),
    "200 connections that hang up after 2 s": Flood(200, 500, 500, stays_s=2.0),
}
TOGETHER: Final = "all of these at once"


def beside(name: str) -> dict[str, Cell]:
    """A tenant that asks for five tokens three times a second, next to another one."""
    pool, calm = VirtualPool(token_s=TOKEN_S), Tenant("calm")
    calms: list[Client] = []
    others: list[Client] = []

    def flooding(flood: Flood, share: float) -> None:
        other = Tenant("other", max_running=flood.max_running)

        def again(client: Client) -> None:
            others.append(client)
            pool.heap.after(1.0 if client.problem else 0.0, ask)

        def leave(client: Client) -> None:
            if client.live is not None and client.ended_s is None:
                client.ended_s = pool.now
                with pool.loop.entered():
                    pool.relay.client_gone(client.live)
                pool.open.pop(client, None)
                pool.heap.after(0.0, ask)

        def ask() -> None:
            if pool.now < 25.0:
                client = pool.ask(other, flood.prompt_tokens, flood.output_tokens, on_end=again)
                if flood.stays_s is not None and client.problem is None:
                    pool.heap.after(flood.stays_s, lambda: leave(client))

        for _ in range(math.ceil(flood.connections * share)):
            pool.heap.after(2.033, ask)

    for number in range(72):
        pool.heap.after(1.0 + number / 3, lambda: calms.append(pool.ask(calm, 100, 5)))
    for kind in FLOODS if name == TOGETHER else (name,):
        if not (name == TOGETHER and FLOODS[kind].max_running):  # a quota would hold the others back as well
            flooding(FLOODS[kind], 0.25 if name == TOGETHER else 1.0)
    pool.run(60.0)
    pool.close()
    counted = [client for client in calms if client.asked_s >= SETTLING_S]
    waits = [client.ttft_s for client in counted if client.problem is None]
    return {
        "the other one": name,
        "asked": len(counted),
        "refused": len(counted) - len(waits),
        "in time %": 100 * sum(wait_s <= TTFT_S for wait_s in waits) / len(counted),
        "ttft_p50_s": percentile(waits, 50) if waits else None,
        "ttft_p95_s": percentile(waits, 95) if waits else None,
        "answer_p95_s": percentile([_took_s(client) for client in counted if client.problem is None], 95),
        "theirs served/s": sum(client.problem is None for client in others) / 25.0,
    }


def _took_s(client: Client) -> float:
    return math.inf if client.ended_s is None else client.ended_s - client.asked_s


@dataclass(frozen=True, slots=True)
class Saturation:
    """Floods of several tenants at once: the tokens of each one's requests, and its weight."""

    short: str
    requests: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]
    connections: int = 120


_SLOTS, _PREFILL = "decode slots", "prefill"
SATURATIONS: Final = (
    *(
        Saturation(_SLOTS, ((100, 200),) * len(weights), weights)
        for weights in ((1.0, 1.0), (1.0, 4.0), (1.0, 2.0, 4.0))
    ),
    Saturation(_SLOTS, ((100, 400), (100, 200), (100, 100)), (1.0, 2.0, 4.0)),
    Saturation(_SLOTS, ((100, 200),) * 10, tuple(1.0 + number % 3 for number in range(10)), 40),
    Saturation(_PREFILL, ((200, 2),) * 3, (1.0, 2.0, 4.0)),
    Saturation(_PREFILL, ((200, 2), (800, 2)), (1.0, 4.0)),
    Saturation(_PREFILL, ((200, 2), (800, 2)), (4.0, 1.0)),
    Saturation(_PREFILL, ((200, 2),) * 10, tuple(1.0 + number % 3 for number in range(10)), 40),
    Saturation(f"{_PREFILL}, prompts of a tenth of the target", ((1_000, 5),) * 3, (1.0, 2.0, 4.0)),
)
SATURATED_S: Final = 60.0, 20.0
"""The end of a saturation, and from when on it counts."""


def weigh(saturation: Saturation) -> dict[str, Cell]:
    """What each tenant is served of what is short, for its weight: 1 is its share."""
    pool, (until_s, from_s) = VirtualPool(token_s=TOKEN_S), SATURATED_S
    counts_prompts = saturation.short != _SLOTS
    served = [0.0] * len(saturation.weights)

    def flooding(number: int) -> None:
        prompt_tokens, output_tokens = saturation.requests[number]
        tenant = Tenant(f"t{number}", weight=saturation.weights[number])

        def again(client: Client) -> None:
            if client.problem is None and pool.now > from_s:
                served[number] += prompt_tokens if counts_prompts else output_tokens
            pool.heap.after(0.3 if client.problem else 0.0, ask)

        def ask() -> None:
            if pool.now < until_s:
                pool.ask(tenant, prompt_tokens, output_tokens, on_end=again)

        for _ in range(saturation.connections):
            pool.heap.after(1.0, ask)

    for number in range(len(served)):
        flooding(number)
    pool.run(until_s)
    pool.close()
    fair = [weight / sum(saturation.weights) for weight in saturation.weights]
    shares = [tokens / sum(served) / part for tokens, part in zip(served, fair, strict=True)]
    return {
        "what is short": saturation.short,
        "tokens of a request": ", ".join(dict.fromkeys(f"{asked}+{out}" for asked, out in saturation.requests)),
        "weights": ", ".join(f"{weight:g}" for weight in saturation.weights),
        "share / weight": ", ".join(f"{share:.2f}" for share in shares),
        "farthest off %": round(100 * max(abs(share - 1) for share in shares), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench tenants_overload", description=__doc__)
    parser.add_argument("--tenants", type=int, default=200)
    parser.add_argument("--times", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--name", default="tenants_overload", help="of the result's file")
    parser.add_argument("--only", nargs="+", choices=("beside", "weights"), help="these alone, without the overload")
    options = parser.parse_args()
    machine, parts = this_machine(), options.only or ("beside", "weights")
    note = "The relay on virtual time."
    if "beside" in parts:
        names = [*FLOODS, TOGETHER]
        publish(options.name + "_beside", machine, [note], BESIDE_COLUMNS, [beside(name) for name in names])
    if "weights" in parts:
        weighed = [weigh(saturation) for saturation in SATURATIONS]
        publish(options.name + "_weights", machine, [note], WEIGHT_COLUMNS, weighed)
    if options.only:
        return 0
    rows: list[dict[str, Cell]] = []
    for tenants in sorted({1, 2, options.tenants}):
        for name in PROMPTS:
            for kind, outputs in OUTPUT_TOKENS.items():
                runs = [
                    overload(name, tenants, options.times, options.seconds, seed, outputs)
                    for seed in range(options.seeds)
                ]
                rows.append({"load": f"{tenants} tenants, {name}{kind}", **mean_of(runs)})
    notes = [
        f"The relay on virtual time; {options.times:g} times what the workers can do for {options.seconds:g} s,",
        f"{options.seeds} seeds. Target: TTFT {TTFT_S:g} s. {100 * LET_IN:g} % of the refused are let in to compare.",
    ]
    publish(options.name, machine, notes, OVERLOAD_COLUMNS, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
