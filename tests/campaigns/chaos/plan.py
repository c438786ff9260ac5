"""The plan of one seed for a service of real processes: faults and turns of the hostile tenant, drawn ahead. Pure."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from baton_testing.gateway.bad_neighbours import BEHAVIOURS

FIRST_S = 3.0
QUIET_S = 15.0
"""Without faults at the end: what a fault did must be over by then."""
GAP_S = (1.0, 8.0)
HOSTILE_S = (4.0, 12.0)


class Kind(enum.StrEnum):
    KILL = "kill"
    STOP = "stop"
    SLOW = "slow"
    CUT = "cut"
    HOLD = "hold a link"
    SLOW_LINK = "slow link"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    DISK = "disk"
    CLOCK = "clock"
    LIAR = "lying worker"
    HANG_UPS = "hang-ups"


class Whom(enum.StrEnum):
    WORKER = "worker"
    HELPER = "helper process"
    GATEWAY = "gateway"
    NOBODY = "-"


WEIGHTS: dict[tuple[Kind, Whom], float] = {
    (Kind.KILL, Whom.WORKER): 3,
    (Kind.KILL, Whom.HELPER): 2,
    (Kind.KILL, Whom.GATEWAY): 0.7,
    (Kind.STOP, Whom.WORKER): 2,
    (Kind.STOP, Whom.HELPER): 2,
    (Kind.STOP, Whom.GATEWAY): 1,
    (Kind.SLOW, Whom.WORKER): 1,
    (Kind.SLOW, Whom.GATEWAY): 1,
    (Kind.CUT, Whom.WORKER): 2,
    (Kind.HOLD, Whom.WORKER): 2,
    (Kind.SLOW_LINK, Whom.WORKER): 1,
    (Kind.DESCRIPTORS, Whom.GATEWAY): 2,
    (Kind.MEMORY, Whom.HELPER): 2,
    (Kind.DISK, Whom.GATEWAY): 1,
    (Kind.DISK, Whom.WORKER): 1,
    (Kind.CLOCK, Whom.NOBODY): 1,
    (Kind.LIAR, Whom.NOBODY): 2,
    (Kind.HANG_UPS, Whom.NOBODY): 3,
}
"""How often each is drawn."""
LASTS_S: dict[Kind, tuple[float, float]] = {
    Kind.KILL: (0.0, 0.0),
    Kind.STOP: (0.3, 6.0),
    Kind.SLOW: (2.0, 8.0),
    Kind.CUT: (0.0, 0.0),
    Kind.HOLD: (0.3, 6.0),
    Kind.SLOW_LINK: (2.0, 8.0),
    Kind.DESCRIPTORS: (1.0, 5.0),
    Kind.MEMORY: (1.0, 6.0),
    Kind.DISK: (2.0, 10.0),
    Kind.CLOCK: (2.0, 10.0),
    Kind.LIAR: (5.0, 20.0),
    Kind.HANG_UPS: (1.0, 4.0),
}
LONGEST_STOP_S = 2.0
"""Longest stop of the gateway: beyond that no client could be served anyway."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`place` chooses the victim among those there are, `strength` how bad it is; both are in [0, 1)."""

    at_s: float
    lasts_s: float
    kind: Kind
    whom: Whom
    place: float
    strength: float

    def __str__(self) -> str:
        return f"{self.at_s:.1f} s: {self.kind} {self.whom}, {self.lasts_s:.1f} s"

    @property
    def ends_s(self) -> float:
        return self.at_s + self.lasts_s


@dataclass(frozen=True, slots=True)
class Turn:
    """One behaviour of the hostile tenant, until the next one."""

    at_s: float
    behaviour: str


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    faults: tuple[Fault, ...]
    turns: tuple[Turn, ...]


def plan(seed: int, seconds: float) -> Plan:
    """Equal for equal arguments. The last fault ends before the quiet at the end."""
    draw = random.Random(f"chaos {seed}")
    faults, at_s = [], FIRST_S
    kinds, weights = tuple(WEIGHTS), tuple(WEIGHTS.values())
    while True:
        at_s += draw.uniform(*GAP_S)
        (kind, whom), lasts_s = draw.choices(kinds, weights)[0], draw.random()
        shortest_s, longest_s = LASTS_S[kind]
        if (kind, whom) == (Kind.STOP, Whom.GATEWAY):
            longest_s = LONGEST_STOP_S
        fault = Fault(at_s, shortest_s + lasts_s * (longest_s - shortest_s), kind, whom, draw.random(), draw.random())
        if fault.ends_s > max(seconds - QUIET_S, seconds / 2):
            break
        faults.append(fault)
    turns, at_s = [], 0.0
    while at_s < seconds - QUIET_S:
        turns.append(Turn(at_s, draw.choice(BEHAVIOURS).name))
        at_s += draw.uniform(*HOSTILE_S)
    return Plan(seed, tuple(faults), tuple(turns))
