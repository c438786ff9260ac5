"""The effect of each kind of fault on a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from baton_testing.simulation.decode import SimDecode
from baton_testing.simulation.flexible import SimFlexible
from baton_testing.simulation.gateway import SimGateway
from baton_testing.simulation.network import End, Path
from baton_testing.simulation.prefill import SimPrefill
from baton_testing.simulation.process import SimProcess
from baton_testing.simulation.scenario import Fault, FaultPlan
from baton_testing.simulation.streams import Stream
from baton_testing.simulation.worker import SimWorker
from baton_wire.messages.values import Role
from baton_worker.serving.process import LEAVE_S

if TYPE_CHECKING:
    from baton_testing.simulation.world import SimWorld

T = TypeVar("T")
LONGEST_S = 5.0
LOST_SEALS_S = 20.0
ORDER_S, LATE_ORDER_S = 0.1, 3.0
ORDERS = 8
"""Times that an order is repeated, a second apart."""


def inject(world: SimWorld, fault: FaultPlan) -> None:
    """Do it, to a victim that the plan picks; a fault without a victim has no effect and is not counted."""
    match fault.kind:
        case Fault.KILL_PREFILL:
            _kill(world, fault, _alive(world, Role.PREFILL))
        case Fault.KILL_DECODE:
            _kill(world, fault, _alive(world, Role.DECODE))
        case Fault.KILL_GATEWAY:
            _kill_gateway(world, fault)
        case Fault.PAUSE:
            _pause(world, fault)
        case Fault.CUT | Fault.CUT_ONE_WAY | Fault.SLOW | Fault.DUPLICATE | Fault.DELAY | Fault.LATE_WRITE:
            _network(world, fault)
        case Fault.FLIP | Fault.TRICKLE:
            _network(world, fault)
        case Fault.RESET:
            _reset(world, fault)
        case Fault.LOST_SEALS:
            _lose_seals(world, fault)
        case Fault.CORRUPT | Fault.OTHER_TOKEN | Fault.SCATTER_ERROR | Fault.SOURCE_ERROR | Fault.HICCUP | Fault.DRAIN:
            _worker(world, fault)
        case Fault.CANCEL | Fault.MASS_CANCEL:
            _clients(world, fault)
        case Fault.CHANGE_ROLE:
            _change_role(world, fault)


def _pick(victims: list[T], pick: float) -> T:
    return victims[int(pick * len(victims))]


def _alive(world: SimWorld, role: Role) -> list[SimWorker]:
    return [worker for worker in world.workers.values() if worker.role is role and worker.is_alive]


def _kill(world: SimWorld, fault: FaultPlan, victims: list[SimWorker]) -> None:
    if victims:
        victim = _pick(victims, fault.pick)
        world.count(fault.kind)
        victim.is_faulted = True
        world.kill(victim)
        _start_again(world, victim, 0.1 + fault.amount * 2.0)


def _start_again(world: SimWorld, victim: SimWorker, delay_s: float) -> None:
    role = victim.ordered if isinstance(victim, SimFlexible) else victim.role
    is_skewed = victim.fingerprint != world.parts.fingerprint
    world.heap.after(delay_s, lambda: world.start_worker(role, victim.address, is_skewed))


def _kill_gateway(world: SimWorld, fault: FaultPlan) -> None:
    victims = [gateway for gateway in world.gateways if gateway.is_alive]
    if victims:
        victim = _pick(victims, fault.pick)
        world.count(fault.kind)
        world.kill(victim)
        world.heap.after(0.1 + fault.amount, lambda: world.start_gateway(victim.address))


def _pause(world: SimWorld, fault: FaultPlan) -> None:
    processes = (*world.workers.values(), *world.gateways)
    victims: list[SimProcess] = [process for process in processes if process.is_running]
    if victims:
        victim = _pick(victims, fault.pick)
        world.count(fault.kind)
        _blame(victim)
        victim.pause()
        victim.note("is paused")
        world.heap.after(0.2 + fault.amount * LONGEST_S, lambda: _wake(victim))


def _wake(victim: SimProcess) -> None:
    if victim.is_alive and victim.is_paused:
        victim.note("is woken")
        victim.wake()


def _blame(victim: SimProcess | None) -> None:
    if isinstance(victim, SimWorker):
        victim.is_faulted = True


def _network(world: SimWorld, fault: FaultPlan) -> None:
    is_of_pairs = fault.kind is Fault.TRICKLE
    path = _pick([path for path in world.paths.values() if path.name[0] == "p" or not is_of_pairs], fault.pick)
    for address in path.name.split("-"):
        _blame(world.workers.get(address))
    lasts_s = 0.3 + fault.amount * LONGEST_S
    match fault.kind:
        case Fault.CUT | Fault.CUT_ONE_WAY:
            one = fault.kind is Fault.CUT_ONE_WAY
            path.out_cut = path.out_cut or not one or fault.amount < 0.5
            path.back_cut = path.back_cut or not one or fault.amount >= 0.5
            world.count(fault.kind)
            world.heap.note(f"{path.name} is cut ({path.out_cut}, {path.back_cut})")
            world.heap.after(lasts_s, lambda: world.heal(path))
        case Fault.SLOW:
            path.slow_s = 0.05 + fault.amount * 0.6
            world.count(fault.kind)
            world.heap.after(lasts_s, lambda: _fast_again(path))
        case Fault.DUPLICATE:
            path.duplicate_next = True
            path.repeat_next.update(path.heard)
        case Fault.FLIP:
            path.flip_next = fault.amount
        case Fault.TRICKLE:
            path.trickle_s = 0.05 + fault.pick * 0.6
            world.heap.after(2 * lasts_s, lambda: _swift_again(path))
        case Fault.DELAY:
            path.delay_next_s = 0.2 + fault.amount * 1.5
        case _:
            path.hold_writes_s = 0.2 + fault.amount * 3.0


def _swift_again(path: Path) -> None:
    path.trickle_s = 0.0


def _fast_again(path: Path) -> None:
    path.slow_s = 0.0


def _reset(world: SimWorld, fault: FaultPlan) -> None:
    ends: list[End | Stream] = [connection.dialler for connection in world.connections]
    ends += [stream for stream in world.streams if stream.is_dialler]
    up = [end for end in ends if end.is_up and end.process.is_running]
    if up:
        victim = _pick(up, fault.pick)
        world.count(fault.kind)
        _blame(victim.process)
        _blame(victim.other.process)
        if isinstance(victim, Stream):
            victim.broke()
        else:
            victim.process.run(lambda: victim.close("reset"))


def _lose_seals(world: SimWorld, fault: FaultPlan) -> None:
    """Until the link is another one; in the end a reset ends it, so that the check at rest means something."""
    decodes = [worker for worker in world.workers.values() if isinstance(worker, SimDecode) and worker.is_running]
    linked = [(worker, epoch) for worker in decodes for epoch in worker.decode_transfer.links]
    if linked:
        victim, epoch = _pick(linked, fault.pick)
        link = victim.decode_transfer.links[epoch].link
        _blame(victim)
        _blame(world.by_epoch[epoch])
        victim.note(f"loses the seals of {epoch.hex()[-4:]} from now on")
        victim.decode_transfer.deaf.add(link)

        def close() -> None:
            victim.thread.call_soon(link.close, "reset in the end")

        world.heap.after(LOST_SEALS_S, close)


def _worker(world: SimWorld, fault: FaultPlan) -> None:
    victim = _pick(list(world.workers.values()), fault.pick)
    _blame(victim)
    match fault.kind:
        case Fault.CORRUPT if isinstance(victim, SimDecode):
            victim.corrupt_next.append(fault.amount)
        case Fault.OTHER_TOKEN if isinstance(victim, SimDecode):
            victim.alter_next = True
        case Fault.SCATTER_ERROR if isinstance(victim, SimDecode):
            victim.fail_next_scatter = True
        case Fault.SOURCE_ERROR if isinstance(victim, SimPrefill):
            victim.source.fail_next = True
        case Fault.HICCUP if isinstance(victim, SimDecode | SimPrefill):
            world.count(fault.kind)
            victim.engine.hiccup_s = 0.1 + fault.amount * 3.0
        case Fault.DRAIN:
            world.count(fault.kind)
            victim.run(lambda: _drain(world, victim))


def _drain(world: SimWorld, victim: SimWorker) -> None:
    """As a stopping process does: no new work, and gone when the last request is, or at the bound."""
    victim.note("drains")
    victim.service.leave()
    victim.later(LEAVE_S, victim.service.drain)
    until = world.heap.now + LEAVE_S + 4.0

    def look() -> None:
        if victim.service.open_requests and world.heap.now < until:
            victim.later(0.2, look)
            return
        world.kill(victim)
        _start_again(world, victim, 0.3)

    victim.later(LEAVE_S + 0.2, look)


def _clients(world: SimWorld, fault: FaultPlan) -> None:
    gateway = _pick(world.gateways, fault.pick)
    if not isinstance(gateway, SimGateway) or not gateway.is_alive or not gateway.open_clients:
        return
    here = gateway.open_clients
    if fault.kind is Fault.CANCEL:
        here = [_pick(here, fault.amount)]
    else:
        world.count(fault.kind)
    for mine in here:
        world.count(Fault.CANCEL)
        gateway.run(lambda mine=mine: gateway.client_gone(mine))  # type: ignore[misc]


def _change_role(world: SimWorld, fault: FaultPlan) -> None:
    """Order a flip as sizing does: in a pool of two or more, by all gateways, until one reports it. Each gateway
    sends the order when it gets to it, and some orders are out of date by then.
    """
    able = [worker for worker in world.workers.values() if isinstance(worker, SimFlexible) and worker.is_alive]
    able = [worker for worker in able if sum(_is_like(worker, other) for other in able) > 1]
    if not able:
        return
    victim = _pick(able, fault.pick)
    world.count(fault.kind)
    victim.ordered = Role.DECODE if victim.ordered is Role.PREFILL else Role.PREFILL
    world.flips += 1
    number, role = world.flips, victim.ordered
    victim.note(f"is to be {role} by flip {number}")

    def say(left: int) -> None:
        for gateway in [known for known in world.gateways if known.is_alive]:
            slow_s = LATE_ORDER_S if world.chance(0.2) else ORDER_S
            gateway.later(world.delay(slow_s), lambda gateway=gateway: gateway.flip(victim.epoch, number, role))  # type: ignore[misc]
        if left and victim.is_alive and victim.flexible.flip < number:
            world.heap.after(1.0, lambda: say(left - 1))

    say(ORDERS)


def _is_like(one: SimFlexible, other: SimFlexible) -> bool:
    return one.ordered is other.ordered and one.fingerprint == other.fingerprint
