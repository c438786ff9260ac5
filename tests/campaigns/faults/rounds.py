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
    """The outcome of one fault. Times in seconds; None: did not happen, or has no meaning for this fault."""

    fault: str
    role: str
    duration_s: float = 0.0
    requests: int = 0
    open_requests: int = 0
    """In flight when the fault struck."""
    held: int = 0
    """Sequences of the victim just before."""
    counts: dict[str, float] = field(default_factory=dict)
    """The service's counts meanwhile; a process that died takes its own with it."""
    pieces: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    moved: int | None = None
    """Exact answers of which a worker was lost on the way: the gateway logged more than one attempt. None: unknown."""
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
    round_.held = sum(
        worker_books.running + worker_books.waiting
        for worker_books in await fleet.books()
        if worker_books.epoch == victim.epoch
    )
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
            note_time(round_, time.monotonic() - struck)
            return
        await asyncio.sleep(max(0.0, POLL_S - (time.monotonic() - now)))
    round_.problems.append(f"not noticed within {NOTICE_LIMIT_S} s")


def note_time(round_: Round, after_s: float) -> None:
    round_.noticed_s = round(after_s, 3)
    if after_s > NOTICE_BAR_S:
        round_.problems.append(f"noticed after {after_s:.2f} s")


async def _baseline(fleet: Fleet, round_: Round, ended: float) -> None:
    """Wait until every worker that answers holds nothing."""
    while True:
        books = await fleet.books()
        round_.quarantined_bytes = max(
            round_.quarantined_bytes, sum(worker_books.quarantined_bytes for worker_books in books)
        )
        if books and all(worker_books.at_baseline for worker_books in books):
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
    attempts = {}
    for path in sorted(logs.glob("*gateway*.log*")):
        for line in path.read_text(errors="replace").splitlines():
            if (at := line.find('{"id":')) >= 0 and '"attempts":' in line:
                entry = json.loads(line[at:])
                attempts[str(entry["id"])] = int(entry["attempts"])
    return attempts


def _judge(
    load: Load, round_: Round, own: set[int], victim: Member, struck: float, attempts: Mapping[str, int]
) -> None:
    verdicts: Counter[str] = Counter()
    for outcome in load.take():
        round_.pieces += len(outcome.answer.times_s)
        is_own = "gateway" in victim.role and round_.fault == "kill" and outcome.verdict == "broken"
        if is_own and outcome.answer.sent_s <= struck and (outcome.port in own or victim.role == "gateway"):
            round_.excepted += 1
            continue
        if (
            victim.role == "gateway"
            and round_.fault == "kill"
            and outcome.verdict == "broken"
            and not outcome.answer.texts
        ):
            round_.excepted += 1  # no process listened: all processes of the one gateway were killed together
            continue
        verdicts[outcome.verdict] += 1
        if outcome.verdict == "exact" and (tried := attempts.get(outcome.id)) is not None:
            round_.moved = (round_.moved or 0) + (tried > 1)
        if outcome.verdict != "exact":
            sent_s, ended_s = outcome.answer.sent_s - struck, outcome.answer.ended_s - struck
            when = f"sent {sent_s:+.2f} s, ended {ended_s:+.2f} s"
            round_.problems.append(f"{outcome.ask.kind} {outcome.verdict} ({when}): {outcome.detail}"[:600])
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
        """The harm notes the times itself."""


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
    kinds = sorted({(round_.fault, round_.role) for round_ in rounds})
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
    for round_ in rounds:
        verdicts.update(round_.verdicts)
    noticed = [round_.noticed_s for round_ in rounds if round_.noticed_s is not None]
    baseline = [round_.baseline_s for round_ in rounds if round_.baseline_s is not None]
    row: dict[str, Any] = {
        "what": what,
        "faults": len(rounds),
        "requests": sum(round_.requests for round_ in rounds),
        "in flight": sum(round_.open_requests for round_ in rounds),
        "held by the victim": sum(round_.held for round_ in rounds),
        "own connections": sum(round_.excepted for round_ in rounds),
        "quarantined bytes": max((round_.quarantined_bytes for round_ in rounds), default=0),
        "problems": sum(len(round_.problems) for round_ in rounds),
    }
    moved = [round_.moved for round_ in rounds if round_.moved is not None]
    row["moved"] = sum(moved) if moved else None
    for name in ("retries", "migrations", "preemptions", "drawn-prefill", "drawn-decode"):
        counted = [round_.counts[name] for round_ in rounds if name in round_.counts]
        row[name] = round(sum(counted)) if counted else None
    row |= {verdict: verdicts[verdict] for verdict in ("exact", "wrong", "failed", "broken")}
    for name, values in (("noticed", noticed), ("baseline", baseline)):
        row[f"{name} p50 s"] = percentile(values, 50) if values else None
        row[f"{name} max s"] = max(values) if values else None
    return row
