"""One round of a fault campaign after the other: load, a fault at a random moment, what it did to the requests, when it
was noticed, when all blocks were free again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.results import Cell, percentile

from campaigns.faults.fleet import POLL_S, Fleet, Member, connections_of, wait_until
from campaigns.faults.load import Load

NOTICE_BAR_S = 3.0
NOTICE_LIMIT_S = 8.0
"""How long a round waits for a death to be noticed beyond the bar."""
BASELINE_LIMIT_S = 10.0
BASELINE_WAIT_S = 75.0
"""How long a round waits for blocks beyond the bar, so that the report can say how long it really took."""


@dataclass(slots=True)
class Round:
    """What one fault came to. Times in seconds; None: did not happen, or has no meaning for this fault."""

    fault: str
    role: str
    duration_s: float = 0.0
    requests: int = 0
    open_requests: int = 0
    """In flight when the fault struck."""
    held: int = 0
    """Sequences of the victim just before."""
    counts: dict[str, float] = field(default_factory=dict)
    """What the service counted meanwhile; a process that died takes its own with it."""
    pieces: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    moved: int | None = None
    """Exact answers of which a worker was lost on the way: the gateway logged more than one attempt. None: not told."""
    excepted: int = 0
    """Connections of the killed gateway process itself."""
    noticed_s: float | None = None
    baseline_s: float | None = None
    quarantined_bytes: int = 0
    restarted_s: float = 0.0
    """How long the round had to wait for the fleet to be whole before it began."""
    problems: list[str] = field(default_factory=list)


class Harm(Protocol):
    """A kind of fault. `strike` chooses and hits; `heal` undoes what is to be undone, once the load has felt it."""

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        """Whom it may hit."""
        ...

    async def strike(self, victim: Member, round_: Round) -> None: ...

    async def heal(self, victim: Member, round_: Round) -> None: ...

    async def notice(self, fleet: Fleet, victim: Member, round_: Round, struck: float) -> None:
        """Wait until those that must give the victim up have done so, and write down how long it took."""
        ...


class Deck:
    """Victims in random order, each as often as any other."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._names: list[str] = []

    def next(self, members: Sequence[Member]) -> Member:
        by_name = {member.name: member for member in members}
        name = next((name for name in self._names if name in by_name), None)
        if name is None:
            self._names = sorted(by_name)
            self._draw.shuffle(self._names)
            name = self._names[0]
        self._names.remove(name)
        return by_name[name]


async def play(fleet: Fleet, load: Load, harm: Harm, deck: Deck, draw: random.Random) -> Round:
    """One round; the fleet is whole when it begins, not necessarily when it ends. Raises TimeoutError if never."""
    restarted_s = await wait_until(fleet)
    counts = await fleet.counts()
    load.begin()
    await asyncio.sleep(draw.uniform(0.2, 1.5))
    victim = deck.next(harm.members_of(await fleet.members()))
    round_ = Round(type(harm).__name__.lower(), victim.role, restarted_s=restarted_s)
    before = load.take()
    if any(answer.verdict != "exact" for answer in before):
        round_.problems += [
            f"before the fault: {a.ask.kind} {a.verdict}: {a.detail}"[:600] for a in before if a.verdict != "exact"
        ]
    round_.open_requests = len(load.open)
    round_.held = sum(each.running + each.waiting for each in await fleet.books() if each.epoch == victim.epoch)
    own = connections_of(victim.pid, fleet.port) if "gateway" in victim.role else set()
    began = time.monotonic()
    await harm.strike(victim, round_)
    struck = time.monotonic()
    await harm.notice(fleet, victim, round_, struck)
    await asyncio.sleep(draw.uniform(0.0, 0.8))
    await harm.heal(victim, round_)
    ended = await load.settle()
    round_.duration_s = round(ended - began, 3)
    for name, value in (await fleet.counts()).items():
        kind = name.partition(" ")[0]
        round_.counts[kind] = round_.counts.get(kind, 0) + value - min(value, counts.get(name, 0))
    await _baseline(fleet, round_, ended)
    _judge(load, round_, own, victim, struck, attempts_in(fleet.logs))
    return round_


async def until_unlinked(fleet: Fleet, epoch: str, round_: Round, struck: float) -> None:
    """Wait until no gateway process has linked the worker any more."""
    while (now := time.monotonic()) - struck < NOTICE_LIMIT_S:
        if epoch not in await fleet.linked():
            noticed(round_, time.monotonic() - struck)
            return
        await asyncio.sleep(max(0.0, POLL_S - (time.monotonic() - now)))
    round_.problems.append(f"not noticed within {NOTICE_LIMIT_S} s")


def noticed(round_: Round, after_s: float) -> None:
    round_.noticed_s = round(after_s, 3)
    if after_s > NOTICE_BAR_S:
        round_.problems.append(f"noticed after {after_s:.2f} s")


async def _baseline(fleet: Fleet, round_: Round, ended: float) -> None:
    """Wait until every worker that answers holds nothing."""
    while True:
        books = await fleet.books()
        round_.quarantined_bytes = max(round_.quarantined_bytes, sum(each.quarantined_bytes for each in books))
        if books and all(each.at_baseline for each in books):
            round_.baseline_s = round(time.monotonic() - ended, 3)
            break
        if time.monotonic() - ended > BASELINE_WAIT_S:
            break
        await asyncio.sleep(POLL_S)
    if round_.baseline_s is None or round_.baseline_s > BASELINE_LIMIT_S:
        held = [f"{b.name}: {b.total - b.free} blocks, {b.running} running, {b.waiting} waiting" for b in books]
        round_.problems.append(f"blocks at baseline after {round_.baseline_s} s: {held}")


def attempts_in(logs: Path) -> dict[str, int]:
    """Attempts by request, from the access log."""
    found = {}
    for path in sorted(logs.glob("*gateway*.log*")):
        for line in path.read_text(errors="replace").splitlines():
            if (at := line.find('{"id":')) >= 0 and '"attempts":' in line:
                entry = json.loads(line[at:])
                found[str(entry["id"])] = int(entry["attempts"])
    return found


def _judge(
    load: Load, round_: Round, own: set[int], victim: Member, struck: float, attempts: Mapping[str, int]
) -> None:
    verdicts: Counter[str] = Counter()
    for judged in load.take():
        round_.pieces += len(judged.answer.times_s)
        is_own = "gateway" in victim.role and round_.fault == "kill" and judged.verdict == "broken"
        if is_own and judged.answer.sent_s <= struck and (judged.port in own or victim.role == "gateway"):
            round_.excepted += 1
            continue
        if (
            victim.role == "gateway"
            and round_.fault == "kill"
            and judged.verdict == "broken"
            and not judged.answer.texts
        ):
            round_.excepted += 1  # nobody listened: all processes of the one gateway were killed together
            continue
        verdicts[judged.verdict] += 1
        if judged.verdict == "exact" and (tried := attempts.get(judged.id)) is not None:
            round_.moved = (round_.moved or 0) + (tried > 1)
        if judged.verdict != "exact":
            sent_s, ended_s = judged.answer.sent_s - struck, judged.answer.ended_s - struck
            when = f"sent {sent_s:+.2f} s, ended {ended_s:+.2f} s"
            round_.problems.append(f"{judged.ask.kind} {judged.verdict} ({when}): {judged.detail}"[:600])
    round_.verdicts = dict(verdicts)
    round_.requests = sum(verdicts.values()) + round_.excepted


class Kill:
    """SIGKILL."""

    def __init__(self, draw: random.Random, whole_gateway_share: float = 0.05) -> None:
        self._draw, self._share = draw, whole_gateway_share

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        """Workers and gateway processes; now and then the gateway's parent, with which all of its processes end."""
        whole = self._draw.random() < self._share
        return [member for member in members if (member.role == "gateway") is whole]

    async def strike(self, victim: Member, round_: Round) -> None:
        os.kill(victim.pid, signal.SIGKILL)

    async def heal(self, victim: Member, round_: Round) -> None:
        """Its parent starts another."""

    async def notice(self, fleet: Fleet, victim: Member, round_: Round, struck: float) -> None:
        if victim.epoch:
            await until_unlinked(fleet, victim.epoch, round_, struck)


class KillWorker(Kill):
    """SIGKILL, of workers alone."""

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        return _workers(members)


class KillWhileFlipping(KillWorker):
    """SIGKILL of any worker, just before, while or after workers of either pool change their roles."""

    def __init__(self, draw: random.Random, flip: Callable[[], None]) -> None:
        super().__init__(draw)
        self._flip = flip

    async def strike(self, victim: Member, round_: Round) -> None:
        self._flip()
        await asyncio.sleep(self._draw.choice((0.0, self._draw.uniform(0.0, 0.3), self._draw.uniform(0.3, 1.5))))
        await super().strike(victim, round_)


class Pause:
    """SIGSTOP, and SIGCONT after less or more than the silence that counts as death."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._until_s = 0.0
        self._is_long = False

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        return [member for member in members if member.role != "gateway"]

    async def strike(self, victim: Member, round_: Round) -> None:
        self._is_long = self._draw.random() < 0.5
        stopped_s = self._draw.uniform(3.5, 7.0) if self._is_long else self._draw.uniform(0.3, 2.4)
        round_.role += f", {'> 3' if self._is_long else '< 2.5'} s"
        self._until_s = time.monotonic() + stopped_s
        os.kill(victim.pid, signal.SIGSTOP)

    async def heal(self, victim: Member, round_: Round) -> None:
        await asyncio.sleep(max(0.0, self._until_s - time.monotonic()))
        os.kill(victim.pid, signal.SIGCONT)

    async def notice(self, fleet: Fleet, victim: Member, round_: Round, struck: float) -> None:
        if victim.epoch and self._is_long:
            await until_unlinked(fleet, victim.epoch, round_, struck)


class Drain:
    """SIGTERM: the worker takes nothing new, and ends what it has."""

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        return _workers(members)

    async def strike(self, victim: Member, round_: Round) -> None:
        os.kill(victim.pid, signal.SIGTERM)

    async def heal(self, victim: Member, round_: Round) -> None:
        """Its parent starts another."""

    async def notice(self, fleet: Fleet, victim: Member, round_: Round, struck: float) -> None:
        """It says so itself."""


class PauseWorker(Pause):
    """The same, of workers alone."""

    def members_of(self, members: Sequence[Member]) -> list[Member]:
        return _workers(members)


def _workers(members: Sequence[Member]) -> list[Member]:
    return [member for member in members if member.epoch]


def load_journal(path: Path) -> list[Round]:
    if not path.exists():
        return []
    return [Round(**json.loads(line)) for line in path.read_text().splitlines()]


def append(path: Path, round_: Round) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(asdict(round_), ensure_ascii=False) + "\n")


def summary(rounds: Sequence[Round]) -> list[dict[str, Cell]]:
    """One row for each kind of victim, and one for all."""
    kinds = sorted({(each.fault, each.role) for each in rounds})
    rows = [
        _row(f"{fault}: {role}", [r for r in rounds if (r.fault, r.role) == (fault, role)]) for fault, role in kinds
    ]
    return [*rows, _row("all", rounds)]


COLUMNS = (
    *(
        "what",
        "faults",
        "requests",
        "in flight",
        "held by the victim",
        "moved",
        "exact",
        "wrong",
        "failed",
        "broken",
        "own connections",
    ),
    *("retries", "migrations", "preemptions", "drawn-prefill", "drawn-decode"),
    *("noticed p50 s", "noticed max s", "baseline p50 s", "baseline max s", "quarantined bytes", "problems"),
)


def _row(what: str, rounds: Sequence[Round]) -> dict[str, Cell]:
    verdicts: Counter[str] = Counter()
    for each in rounds:
        verdicts.update(each.verdicts)
    noticed = [each.noticed_s for each in rounds if each.noticed_s is not None]
    baseline = [each.baseline_s for each in rounds if each.baseline_s is not None]
    row: dict[str, Any] = {
        "what": what,
        "faults": len(rounds),
        "requests": sum(each.requests for each in rounds),
        "in flight": sum(each.open_requests for each in rounds),
        "held by the victim": sum(each.held for each in rounds),
        "own connections": sum(each.excepted for each in rounds),
        "quarantined bytes": max((each.quarantined_bytes for each in rounds), default=0),
        "problems": sum(len(each.problems) for each in rounds),
    }
    moved = [each.moved for each in rounds if each.moved is not None]
    row["moved"] = sum(moved) if moved else None
    for name in ("retries", "migrations", "preemptions", "drawn-prefill", "drawn-decode"):
        counted = [each.counts[name] for each in rounds if name in each.counts]
        row[name] = round(sum(counted)) if counted else None
    row |= {verdict: verdicts[verdict] for verdict in ("exact", "wrong", "failed", "broken")}
    for name, values in (("noticed", noticed), ("baseline", baseline)):
        row[f"{name} p50 s"] = percentile(values, 50) if values else None
        row[f"{name} max s"] = max(values) if values else None
    return row
