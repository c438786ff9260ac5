"""A cause planted in a cluster in memory, and what the top line of its deployment says, against what is true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from baton_operator.kube.kinds import DEPLOYMENTS, PODS
from baton_operator.objects.metadata import ROLE_LABEL
from baton_testing.kube.cluster import is_ready
from baton_testing.kube.store import Json
from baton_testing.kube.world import NAME, SPACE, Promise, World
from baton_testing.virtual_time.loop import run_virtual

WITHIN_S, SETTLED_S = 30.0, 120.0
LOOSE = Promise(floor=0, most=64)


@dataclass(frozen=True, slots=True)
class Planted:
    """One cause."""

    name: str
    reason: str
    """The text that the column must show within WITHIN_S."""
    plant: Callable[[World], Awaitable[None]]
    lift: Callable[[World], None] | None = None
    """Takes the cause away; then the deployment must serve. None: it is not tried."""
    is_ready: bool = False
    """True: requests are served all the same."""
    says: str = ""
    """Texts that the message must contain."""
    is_running: bool = False
    """Planted in a deployment that serves, not in a new one."""


@dataclass(frozen=True, slots=True)
class Told:
    """The outcome of one planted cause."""

    reason: str
    after_s: float
    """From planting to the right reason, or to giving up."""
    ready: str
    message: str
    available: bool
    """True if a request would have been answered then."""
    lies: tuple[str, ...]
    """Statements that were wrong for longer than it takes to see the truth."""
    recovered: bool
    seen: Json = field(default_factory=dict)
    """The LLMDeployment as it was then."""


def play(cause: Planted) -> Told:
    """One run, on virtual time."""

    async def main() -> Told:
        world = World(promise=LOOSE)
        world.start()
        if cause.is_running:
            world.user_applies()
            await until(lambda: _summary(world) == "Serving", SETTLED_S)
        began = world.clock()
        await cause.plant(world)
        await until(lambda: _summary(world) == cause.reason, WITHIN_S)
        after_s = world.clock() - began
        lies = [] if await _agrees(world) else [f"{_summary(world)} while available is {available(world)}"]
        ready, reason, message = _ready(world)
        planted = Told(
            _summary(world), after_s, ready, f"{reason}: {message}", available(world), tuple(lies), True, _live(world)
        )
        if cause.lift is not None:
            cause.lift(world)
            world.cluster.nudge()
            await until(lambda: _summary(world) == "Serving", 2 * SETTLED_S)
            planted = replace(planted, recovered=_summary(world) == "Serving")
        await world.end()
        return planted

    return run_virtual(main())


async def _agrees(world: World) -> bool:
    """Check that Ready is right within the time in which readiness settles (15 s) and a pass runs."""
    for _ in range(40):
        if (_ready(world)[0] == "True") == available(world):
            return True
        await asyncio.sleep(1.0)
    return False


def available(world: World) -> bool:
    """True if a request would be answered, counted Pod by Pod."""
    gateways = [pod for pod in world.store.all(PODS, SPACE) if role_of(pod) == "gateway" and is_ready(pod)]
    return bool(gateways) and all(world.usable().values())


async def until(holds: Callable[[], bool], within_s: float) -> None:
    for _ in range(int(2 * within_s)):
        if holds():
            return
        await asyncio.sleep(0.5)


def _live(world: World) -> Json:
    return world.store.peek(DEPLOYMENTS, SPACE, NAME) or {}


def _status(world: World) -> Json:
    live_status: Json = _live(world).get("status", {})
    return live_status


def _summary(world: World) -> str:
    return str(_status(world).get("summary", ""))


def _ready(world: World) -> tuple[str, str, str]:
    for condition in _status(world).get("conditions", ()):
        if condition["type"] == "Ready":
            return condition["status"], condition["reason"], condition["message"]
    return "", "", ""


def role_of(body: Json) -> str:
    return str(body["metadata"].get("labels", {}).get(ROLE_LABEL, ""))
