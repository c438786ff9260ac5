"""Carries out the faults of a plan: each begins at its time, lasts, and is undone, whichever process died meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

import aiohttp
import psutil

from baton_testing.background_tasks import cancel
from baton_testing.gateway.hang_ups import HangUps
from baton_testing.gateway.three_tenants import BAD
from baton_testing.processes.deployment import Worker
from baton_testing.processes.soft_limits import SoftLimits
from campaigns.chaos.plan import Fault, Kind, Whom
from campaigns.chaos.stage import Stage

T = TypeVar("T")
HOUR_S = 3_600
PULSE_S = (0.02, 0.08)
"""How long a slow process is stopped, and runs: it gets from 4/5 down to 1/5 of its time."""
FREE_DESCRIPTORS = 2
HANG_UP_LANES = 12
MODEL = "tiny"


class Harms:
    """The faults of a plan: those carried out are in `done`, those under way or just over in `windows`."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._seed, self._limits = stage, seed, SoftLimits()
        self.done: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        """With the reason."""
        self.hung_up = 0
        """Connections."""
        self.windows: list[tuple[float, float, Fault]] = []
        """From when to when a fault was there, in seconds of the loop's clock; infinite: it still is."""

    async def carry_out(self, faults: Sequence[Fault], began: float) -> None:
        """Carry out all faults, each at its time since `began`. Raises what went wrong with the carrying out."""
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                tasks.create_task(self._in_time(fault, began))

    def since(self, start_s: float, kinds: Sequence[Kind] = tuple(Kind)) -> bool:
        """True if a fault of these kinds was under way at any time since then."""
        return any(ended_s >= start_s and fault.kind in kinds for _, ended_s, fault in self.windows)

    async def _in_time(self, fault: Fault, began: float) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, began + fault.at_s - loop.time()))
        place = len(self.windows)
        self.windows.append((loop.time(), float("inf"), fault))
        try:
            async with self._harm(fault) as reason:
                self.skipped[f"{fault.kind} {fault.whom}: {reason}"] += bool(reason)
                self.done[f"{fault.kind} {fault.whom}"] += not reason
                if not reason:
                    await asyncio.sleep(fault.lasts_s)
        finally:
            self.windows[place] = self.windows[place][0], loop.time(), fault

    @contextlib.asynccontextmanager
    async def _harm(self, fault: Fault) -> AsyncIterator[str]:
        """Yields why the fault was not carried out; empty: it was."""
        async with contextlib.AsyncExitStack() as undo:
            try:
                reason = await self._begin(fault, undo)
            except (psutil.NoSuchProcess, aiohttp.ClientError, OSError, EOFError, TimeoutError) as error:
                reason = f"no process ({type(error).__name__})"
            yield reason

    async def _begin(self, fault: Fault, undo: contextlib.AsyncExitStack) -> str:
        match fault.kind:
            case Kind.CUT | Kind.HOLD | Kind.SLOW_LINK:
                return self._hurt_link(fault, undo)
            case Kind.CLOCK:
                if self._stage.clock is None:
                    return self._stage.no_clock
                undo.enter_context(self._stage.clock.shifted(HOUR_S if fault.strength < 0.5 else -HOUR_S))
                return ""
            case Kind.LIAR:
                await undo.enter_async_context(self._stage.lying_worker())
                return ""
            case Kind.HANG_UPS:
                return self._hang_up(fault, undo)
        process = self._process(fault)
        return "no process" if process is None else self._hurt(process, fault, undo)

    def _process(self, fault: Fault) -> psutil.Process | None:
        match fault.whom:
            case Whom.GATEWAY:
                return self._stage.gateway()
            case Whom.HELPER:
                return _choose(self._stage.helpers(), fault)
        worker = self._worker(fault)
        return None if worker is None else psutil.Process(worker.child.pid)

    def _worker(self, fault: Fault) -> Worker | None:
        return _choose(self._stage.workers(), fault)

    def _hurt(self, process: psutil.Process, fault: Fault, undo: contextlib.AsyncExitStack) -> str:
        match fault.kind:
            case Kind.KILL:
                if fault.whom is Whom.GATEWAY:
                    self._stage.gateway_deaths.append(asyncio.get_running_loop().time())
                    self._stage.gateway_ready_s = float("inf")
                process.kill()
            case Kind.STOP:
                process.suspend()
                undo.callback(_resume, process)
            case Kind.SLOW:
                pulses = asyncio.create_task(_pulse(process, 0.2 + 0.6 * fault.strength))
                undo.push_async_callback(_end, pulses, process)
            case Kind.DESCRIPTORS:
                fewest = process.num_fds() + FREE_DESCRIPTORS
                undo.enter_context(self._limits.lowered(process, psutil.RLIMIT_NOFILE, fewest))
            case Kind.MEMORY:
                most = int(process.memory_info().vms * (1 + fault.strength / 50))
                undo.enter_context(self._limits.lowered(process, psutil.RLIMIT_AS, most))
            case _:
                longest = int(fault.strength * 4_096)
                undo.enter_context(self._limits.lowered(process, psutil.RLIMIT_FSIZE, longest))
        return ""

    def _hurt_link(self, fault: Fault, undo: contextlib.AsyncExitStack) -> str:
        worker = self._worker(fault)
        proxy = None if worker is None else _choose(self._stage.proxies_of(worker), fault)
        if proxy is None:
            return "no proxy"
        match fault.kind:
            case Kind.CUT:
                proxy.cut()
            case Kind.HOLD:
                undo.enter_context(proxy.held())
            case _:
                undo.enter_context(proxy.slowed(0.002 + 0.05 * fault.strength))
        return ""

    def _hang_up(self, fault: Fault, undo: contextlib.AsyncExitStack) -> str:
        hang_ups = HangUps(self._stage.port, MODEL, BAD, self._seed)
        first = int(fault.strength * 1_000_000)
        lanes = [asyncio.create_task(hang_ups.lane(first + number, 1 << 30)) for number in range(HANG_UP_LANES)]

        async def stop() -> None:
            self.hung_up += hang_ups.done
            await cancel(lanes)

        undo.push_async_callback(stop)
        return ""


def _choose(choices: Sequence[T], fault: Fault) -> T | None:
    return choices[int(fault.place * len(choices))] if choices else None


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.resume()


async def _pulse(process: psutil.Process, share: float) -> None:
    """Stop the process for this share of its time."""
    while process.is_running():
        process.suspend()
        await asyncio.sleep(PULSE_S[1] * share)
        process.resume()
        await asyncio.sleep(max(PULSE_S[0], PULSE_S[1] * (1 - share)))


async def _end(pulses: asyncio.Task[None], process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):  # it was killed meanwhile
        await cancel([pulses])
    _resume(process)
