"""Workers that change their role: which ones do, and which orders are under way. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from baton_control.pool_flips import count_flips
from baton_local.fleet.desired_processes import Fleet, SlotSpec
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Role


def slots_to_flip(
    fleet: Fleet,
    wanted: Mapping[Role, int],
    running: Iterable[SlotSpec],
    usable: frozenset[str],
    started_s: Mapping[str, float],
) -> tuple[tuple[SlotSpec, Role], ...]:
    """The slots whose workers change pools (`count_flips` says how many), each with its new role.

    Only workers that gateways can use flip, because the others can be stopped at no loss. The youngest flip first, as
    when workers are stopped. None flips while templates change: that is the rollout's business.
    """
    slots = tuple(running)
    templates = fleet.templates
    if not all(template.flips for template in templates.values()):
        return ()
    if any(slot.worker.revision != templates[slot.worker.role].revision for slot in slots):
        return ()
    workers = Counter(slot.worker.role for slot in slots)
    able = Counter(slot.worker.role for slot in slots if slot.name in usable)
    flips = count_flips(workers, wanted, able)
    if flips is None:
        return ()
    givers = [slot for slot in slots if slot.worker.role is flips.giver and slot.name in usable]
    givers.sort(key=lambda slot: (-started_s.get(slot.name, 0.0), slot.name))
    return tuple((slot, flips.taker) for slot in givers[: flips.workers])


@dataclass(frozen=True, slots=True)
class FlipUnderWay:
    """A worker process that was ordered to change its role."""

    slot: str
    worker: bytes
    """Epoch of the process: the next process of the slot starts in the role that its arguments name."""
    number: int
    role: Role
    since_s: float

    @property
    def order(self) -> FlipOrder:
        return FlipOrder(self.worker, self.number, self.role)


@dataclass(slots=True)
class FlipsUnderWay:
    """The flips that are under way, at most one for each slot. The numbers of one worker's flips grow."""

    _open: dict[str, FlipUnderWay] = field(default_factory=dict)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def begin(self, slot: str, worker: bytes, role: Role, carried_out: int, now: float) -> None:
        """Order a flip. `carried_out`: the number of the worker's last flip, as gateways report it; 0: none known."""
        number = self._numbers[worker] = max(carried_out, self._numbers.get(worker, 0)) + 1
        self._open[slot] = FlipUnderWay(slot, worker, number, role, now)

    def follow(self, workers: Mapping[str, bytes], carried_out: Mapping[bytes, int]) -> tuple[FlipUnderWay, ...]:
        """The flips that were carried out since the last call, and are closed now. `workers`: the epoch of each slot's
        process; flips of processes that are gone are dropped.
        """
        self._numbers = {epoch: last for epoch, last in self._numbers.items() if epoch in workers.values()}
        self._open = {slot: flip for slot, flip in self._open.items() if workers.get(slot) == flip.worker}
        done = tuple(flip for flip in self._open.values() if carried_out.get(flip.worker, 0) >= flip.number)
        for flip in done:
            del self._open[flip.slot]
        return done

    @property
    def orders(self) -> tuple[FlipOrder, ...]:
        """The orders that gateways have to pass on until they were carried out."""
        return tuple(flip.order for flip in self._open.values())
