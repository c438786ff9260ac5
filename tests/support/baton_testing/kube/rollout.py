"""A small world for the rollout planner: workers that start, fail, crash and drain, and a user who changes his mind.

One sequence is a seed: sizes, limits and some dozens of events (edits of one or both pools, reverts, scaling, pause,
canary, failing templates, crashes, nodes without room, telemetry that is missing, an operator that starts again)
between the planner's steps. After every step the promises of `rollout` are checked by counting the workers one by one,
not with the planner's own functions. Every sequence ends with a calm in which the rollout has to complete.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from baton_control.hashes import Revision
from baton_control.rollout import Group, Limits, RolloutPhase, Step, Wanted, is_complete, next_step
from baton_wire.messages.values import POOL_ROLES, Role

MOST_WORKERS = 8
CALM_STEPS = 400

Planner = Callable[[dict[Role, Wanted], tuple[Group, ...], Limits, bool], Step]


@dataclass(slots=True, eq=False)
class Worker:
    role: Role
    revision: Revision
    number: int
    is_placed: bool = True
    """A node has room for it."""
    is_ready: bool = False
    is_routable: bool = False
    """Some gateway has linked it, which takes a while after it is ready."""


@dataclass(slots=True)
class Counts:
    """Counts over sequences, which show that rare events happened at all."""

    sequences: int = 0
    steps: int = 0
    seen: Counter[str] = field(default_factory=Counter)


class BrokenPromiseError(AssertionError):
    """A step that breaks what `rollout` promises."""


class RolloutWorld:
    """One sequence. `planner` is what is tested; a faulty one is how the checks themselves are tested."""

    def __init__(self, seed: int, counts: Counts, planner: Planner = next_step) -> None:
        self._random = random.Random(seed)
        self._seed, self._counts, self._planner = seed, counts, planner
        self._numbers = itertools.count()
        self._workers: list[Worker] = []
        self._since: dict[tuple[Role, Revision], int] = {}
        self._failing: set[tuple[Role, Revision]] = set()
        self._room: int | None = None
        self._is_known, self._is_linked, self._paused = True, True, False
        self._has_problem = True
        """Nothing was complete yet, or something else than the planner made workers fewer or the wish greater."""
        self._limits = self._some_limits()
        fit, template = "f0", "t0"
        sizes = [self._size() for _ in POOL_ROLES]
        self._wanted = {role: Wanted(Revision(fit, template), n) for role, n in zip(POOL_ROLES, sizes, strict=True)}
        self._past = [self._wanted]

    def run(self) -> None:
        """The whole sequence. Raises BrokenPromiseError, which names the seed and the state."""
        self._counts.sequences += 1
        if self._random.random() < 0.8:
            self._calm()
        for _ in range(self._random.randint(3, 30)):
            self._event()
            for _ in range(self._random.choice((0, 1, 1, 2, 3, 6))):
                self._world_moves()
                self._step()
        self._calm()

    def _event(self) -> None:
        kinds = (
            *((self._edit, 5), (self._revert, 3), (self._scale, 2), (self._crash, 2), (self._set_limits, 1)),
            *((self._toggle_pause, 1), (self._toggle_known, 1), (self._toggle_room, 1), (self._fail, 1)),
            *((self._toggle_link, 1), (self._lose_links, 1)),
        )
        kind = self._random.choices([event for event, _ in kinds], [weight for _, weight in kinds])[0]
        self._counts.seen[kind.__name__.strip("_")] += 1
        kind()

    def _edit(self) -> None:
        """A new template for one pool or both; for both also another model, which fits no other."""
        number = next(self._numbers)
        both = self._random.random() < 0.6
        other_model = both and self._random.random() < 0.5
        roles = POOL_ROLES if both else (self._random.choice(POOL_ROLES),)
        fit = f"f{number}" if other_model else self._wanted[Role.PREFILL].revision.fit
        changed = {role: Wanted(Revision(fit, f"t{number}"), self._wanted[role].workers) for role in roles}
        self._wanted = self._wanted | changed
        self._past.append(self._wanted)

    def _revert(self) -> None:
        earlier = self._random.choice(self._past)
        self._wanted = {role: Wanted(earlier[role].revision, self._wanted[role].workers) for role in POOL_ROLES}

    def _scale(self) -> None:
        role = self._random.choice(POOL_ROLES)
        self._wanted = self._wanted | {role: Wanted(self._wanted[role].revision, self._size())}
        if self._random.random() < 0.05:
            self._wanted = {role: Wanted(pool.revision, 0) for role, pool in self._wanted.items()}
        self._has_problem = True

    def _crash(self) -> None:
        for worker in self._workers:
            if self._random.random() < 0.3:
                worker.is_ready = worker.is_routable = False
        self._has_problem = True

    def _set_limits(self) -> None:
        self._limits = self._some_limits()
        self._has_problem = True

    def _toggle_pause(self) -> None:
        self._paused = not self._paused

    def _toggle_known(self) -> None:
        self._is_known = not self._is_known

    def _toggle_link(self) -> None:
        """A reporting gateway is new: it has linked no worker yet, while the others serve."""
        self._is_linked = not self._is_linked

    def _lose_links(self) -> None:
        """Ready workers that no gateway can reach."""
        for worker in self._workers:
            if self._random.random() < 0.2:
                worker.is_routable = False
        self._has_problem = True

    def _toggle_room(self) -> None:
        self._room = None if self._room is not None else len(self._workers) + self._random.randint(0, 1)

    def _fail(self) -> None:
        role = self._random.choice(POOL_ROLES)
        self._failing.add((role, self._wanted[role].revision))

    def _calm(self) -> None:
        """Without interference and faults: the rollout has to complete."""
        self._paused, self._is_known, self._is_linked, self._room, self._failing = False, True, True, None, set()
        self._limits = Limits(self._limits.max_surge, self._limits.max_unavailable, 0)
        for _ in range(CALM_STEPS):
            self._world_moves(1.0)
            if self._step().phase is RolloutPhase.COMPLETE:
                self._world_moves(1.0)
                self._world_moves(1.0)
                self._has_problem = False
                return
        raise self._broken("the rollout does not complete")

    def _world_moves(self, chance: float = 0.6) -> None:
        for number, worker in enumerate(self._workers):
            worker.is_placed = worker.is_placed or self._room is None or number < self._room
            fails = (worker.role, worker.revision) in self._failing
            if worker.is_placed and not fails and self._random.random() < chance:
                worker.is_routable = worker.is_ready
                worker.is_ready = True

    def _step(self) -> Step:
        groups = self._groups()
        before = self._facts()
        step = self._planner(self._wanted, groups, self._limits, self._paused)
        self._counts.steps += 1
        self._counts.seen[step.phase.name] += 1
        is_asked_twice = self._random.random() < 0.1
        if is_asked_twice and step != self._planner(dict(self._wanted), groups, self._limits, self._paused):
            raise self._broken("the planner remembers")
        for change in step.changes:
            self._carry_out(change.role, change.revision, change.workers)
        reported = {(group.role, group.revision) for group in groups if group.failing}
        self._check(step, before, self._facts(), reported)
        if is_complete(self._wanted, groups) != (step.phase is RolloutPhase.COMPLETE):
            raise self._broken(f"{step.phase} is not the truth")
        return step

    def _groups(self) -> tuple[Group, ...]:
        groups = []
        keys = sorted(
            {(worker.role, worker.revision) for worker in self._workers}, key=lambda key: (key[0], key[1].template)
        )
        self._random.shuffle(keys)
        for role, revision in keys:
            mine = [worker for worker in self._workers if (worker.role, worker.revision) == (role, revision)]
            reported = sum(worker.is_routable for worker in mine) if self._is_linked else 0
            idle = sum(not worker.is_ready for worker in mine)
            fails = (role, revision) in self._failing and any(not worker.is_routable for worker in mine)
            unplaced = sum(not worker.is_placed for worker in mine)
            since = f"{self._since[role, revision]:09}"
            routable = reported if self._is_known else None
            groups.append(Group(role, revision, len(mine), routable, fails, unplaced, idle, since))
        return tuple(groups)

    def _carry_out(self, role: Role, revision: Revision, change: int) -> None:
        mine = [worker for worker in self._workers if (worker.role, worker.revision) == (role, revision)]
        if change > 0:
            if not mine and revision != self._wanted[role].revision:
                raise self._broken(f"starts {revision}, of which no template is left")
            if not mine:
                self._since[role, revision] = next(self._numbers)
            placed = self._room is None
            self._workers += [Worker(role, revision, next(self._numbers), placed) for _ in range(change)]
        if len(mine) + change < 0:
            raise self._broken(f"stops {-change} of {len(mine)} workers")
        mine.sort(key=lambda worker: (worker.is_ready, -worker.number))
        gone = mine[: max(-change, 0)]
        self._workers = [worker for worker in self._workers if worker not in gone]

    def _facts(self) -> Facts:
        return Facts(self._workers, self._wanted, self._limits)

    def _check(self, step: Step, before: Facts, after: Facts, reported: set[tuple[Role, Revision]]) -> None:
        for role, pool in self._wanted.items():
            floor = pool.workers - self._limits.unavailable(pool.workers)
            if after.total[role] > max(pool.workers + self._limits.surge(pool.workers), before.total[role]):
                raise self._broken(f"surge of {role}")
            if after.usable[role] < min(floor, before.usable[role]):
                raise self._broken(f"floor of {role}: {before.usable[role]} to {after.usable[role]}")
            if not self._has_problem and after.usable[role] < floor:
                raise self._broken(f"{role} under the floor {floor} though nothing went wrong: {after.usable[role]}")
            self._check_hold(role, before, after, reported)
        if after.share < min(before.share, after.least_share) - 1e-9 and step.changes and len(before.fits) <= 2:
            raise self._broken(f"ratio: {before.share} to {after.share}, least {after.least_share}")
        unready = {
            (change.role, change.revision): before.unready[change.role, change.revision] for change in step.changes
        }
        stopped = {(change.role, change.revision): -change.workers for change in step.changes if change.workers < 0}
        if not self._is_known and any(count > unready[key] for key, count in stopped.items()):
            raise self._broken("stops ready workers although it is unknown which are routable")

    def _check_hold(self, role: Role, before: Facts, after: Facts, reported: set[tuple[Role, Revision]]) -> None:
        fresh, was = (facts.by_revision[role, self._wanted[role].revision] for facts in (after, before))
        had_others = before.total[role] > was
        wanted = self._wanted[role].workers
        if self._paused and had_others and fresh > was and was and before.total[role] >= wanted:
            raise self._broken("a paused rollout goes on")
        fails = any((pool_role, pool.revision) in reported for pool_role, pool in self._wanted.items())
        if fails and had_others and fresh > was and not self._paused:
            raise self._broken("a failing template gets more workers")
        share = math.ceil(wanted * self._limits.canary / 100)
        revision = self._wanted[role].revision
        is_new = not was or self._since.get((role, revision), 0) > after.oldest(role, self._since)
        is_held = 0 < self._limits.canary < 100 and had_others and wanted > 1 and is_new and not self._paused
        if is_held and was <= share < fresh and before.serving_others(role, revision):
            raise self._broken(f"the canary of {role} takes {fresh} of {wanted}")

    def _size(self) -> int:
        return self._random.randint(1, MOST_WORKERS)

    def _some_limits(self) -> Limits:
        surge, unavailable = self._random.choice([(1, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 1), (0, 3), (2, 2)])
        return Limits(surge, unavailable, self._random.choice((0, 0, 0, 10, 34, 50, 90)))

    def _broken(self, what: str) -> BrokenPromiseError:
        state = map(str, (self._wanted, self._limits, *self._groups()))
        return BrokenPromiseError("\n".join((f"seed {self._seed}: {what}", *state)))


class Facts:
    """The state of the workers at one instant, counted worker by worker."""

    def __init__(self, workers: list[Worker], wanted: dict[Role, Wanted], limits: Limits) -> None:
        floors = {role: pool.workers - limits.unavailable(pool.workers) for role, pool in wanted.items()}
        routable = [worker for worker in workers if worker.is_routable]
        self.total = Counter(worker.role for worker in workers)
        self.by_revision = Counter((worker.role, worker.revision) for worker in workers)
        self.unready = Counter((worker.role, worker.revision) for worker in workers if not worker.is_ready)
        self._routable = Counter((worker.role, worker.revision) for worker in routable)
        linked = {(worker.role, worker.revision.fit) for worker in routable}
        self.usable = Counter(
            worker.role
            for worker in routable
            if floors[worker.role.partner] <= 0 or (worker.role.partner, worker.revision.fit) in linked
        )
        by_fit = Counter((worker.role, worker.revision.fit) for worker in routable)
        sizes = {role: pool.workers for role, pool in wanted.items()}
        self.fits = {worker.revision.fit for worker in workers}
        self.share = 0.0
        self.least_share = 0.0
        if all(sizes.values()):
            fits = {worker.revision.fit for worker in routable}
            self.share = sum(min(by_fit[role, fit] / sizes[role] for role in POOL_ROLES) for fit in fits)
            self.least_share = max(min(floors[role] / sizes[role] for role in POOL_ROLES), 0.0)

    def oldest(self, role: Role, since: dict[tuple[Role, Revision], int]) -> int:
        """When the oldest group of a pool was made."""
        return min((created for key, created in since.items() if key[0] is role and self.by_revision[key]), default=0)

    def serving_others(self, role: Role, revision: Revision) -> int:
        """Routable workers of the pool's other revisions."""
        return sum(count for key, count in self._routable.items() if key[0] is role and key[1] != revision)
