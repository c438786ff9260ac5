"""A worker from first flag to last breath, the part that both roles share: build, connect, listen, serve, drain, stop.

The role brings its messenger and its side of the KV transfer (`RoleParts`); this file runs them in their three threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from baton_engine.running.step_load import StepLoad
from baton_wire.messages.gateway_link import WorkerState
from baton_worker.building import assembly, paced
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import with_measures
from baton_worker.reporting.step_log import StepLog
from baton_worker.reporting.views import EngineSnapshot, StateView, TransferView
from baton_worker.serving import process
from baton_worker.serving.endpoints import application
from baton_worker.serving.engine_thread import EngineThread
from baton_worker.serving.gateway_links import GatewayLinks
from baton_worker.serving.loop_thread import LoopThread
from baton_worker.serving.messenger import Messenger

log = logging.getLogger(__name__)

STOP_S = 5.0
"""Bound of each step of taking the process down, after the drain."""
WORN_S = 10.0
"""A process that should make room for a fresh one for so long drains and ends; whoever supervises it starts the next.
Longer than the proofs that empty a quarantine take."""
WEAR_POLL_S = 0.5


class Mover(Protocol):
    """The role's side of the KV transfer, run in the transfer thread's loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RoleParts:
    service: Messenger
    mover: Mover
    pair_port: Callable[[], int | None]
    """Known once the mover has started."""
    transfer_view: Callable[[], TransferView]
    is_idle: Callable[[], bool]
    """Whether no hand-over is open on this side."""
    wear: Callable[[], str | None] = lambda: None
    """Why this process should make room for a fresh one, if it should."""
    companions: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """Further coroutines of the io loop, run while the worker serves."""


BuildRole = Callable[[WorkerConfig, EngineParts, bytes, WorkerMetrics], RoleParts]


async def serve(config: WorkerConfig, stop: process.Stop, build_role: BuildRole) -> None:
    """Run the worker until a stop is asked for. Raises ConfigError when it cannot start."""
    loop = asyncio.get_running_loop()
    metrics = WorkerMetrics(config.role)
    steps = StepLog()

    def stepped(step: int, load: StepLoad, seconds: float) -> None:
        metrics.stepped(load, seconds)
        steps.add(step, load, seconds)

    parts = await _built(config, stop, stepped)
    if parts is None:
        return
    metrics.computes(parts.costs, parts.peak)
    metrics.started(parts.stages)
    epoch = process.new_epoch()
    role = build_role(config, parts, epoch, metrics)
    service = role.service

    def crashed(error: BaseException) -> None:
        loop.call_soon_threadsafe(stop.crashed, error)

    engine = EngineThread(parts.scheduler, parts.stepper, service.on_events, service.on_cancel, crashed)
    service.attach(engine)
    metrics.watch(lambda: engine.snapshot, role.transfer_view)
    async with contextlib.AsyncExitStack() as stack:
        transfer_thread = LoopThread("transfer")
        stack.callback(transfer_thread.stop, STOP_S)
        await process.bound(config, transfer_thread.run_from_loop(role.mover.start()))
        startup_s = process.age_s()

        def measured(state: WorkerState) -> WorkerState:
            return with_measures(state, startup_s, role.transfer_view(), steps.take())

        hello = assembly.hello(config, parts, epoch, role.pair_port())
        links = GatewayLinks(hello, parts.bundle.data, parts.keys, service, measured)
        engine.start()
        stack.callback(engine.stop, STOP_S)

        def view() -> StateView:
            return worker_view(config, parts, epoch, engine.snapshot, service.draining, role.transfer_view())

        app = application(links, metrics, lambda: engine.snapshot, view, lambda: not service.draining)
        port = await stack.enter_async_context(process.listening(app, config.listen))
        for companion in (links.report_state, lambda: wears_out(role.wear, stop), *role.companions):
            stack.enter_context(_background(companion(), crashed))
        process.settle(config, epoch, port, role.pair_port())
        await stop.draining.wait()
        service.leave()
        await stop.until(lambda: len(links) == 0, process.LEAVE_S)
        service.drain()
        await stop.until(lambda: service.open_requests == 0 and role.is_idle(), config.drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await transfer_thread.run_from_loop(role.mover.stop())


class Wear:
    """When a process that should make room for a fresh one does so."""

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s

    def is_over(self, why: str | None, now: float) -> bool:
        """Whether there has been a reason for `WORN_S` without a break; `why` is the one of this moment."""
        if why is None:
            self._since_s = now
        return now - self._since_s >= WORN_S


async def wears_out(why: Callable[[], str | None], stop: process.Stop) -> None:
    """Ask for a drain once there has been a reason for long enough."""
    wear = Wear(time.monotonic())
    while not wear.is_over(why(), time.monotonic()):  # noqa: ASYNC110 - another thread's figures, no event
        await asyncio.sleep(WEAR_POLL_S)
    log.warning("draining, to come back as a fresh process: %s", why())
    stop.draining.set()


async def _built(
    config: WorkerConfig, stop: process.Stop, stepped: Callable[[int, StepLoad, float], None]
) -> EngineParts | None:
    """The engine; None when the worker was told to stop while an emulated start-up lasted."""
    if config.paced is None:
        return await asyncio.to_thread(assembly.build, config, stepped)
    times = paced.read_times(config.paced)
    parts = await asyncio.to_thread(paced.build, config, times, stepped)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, times.startup_s - (process.age_s() or 0.0))):
            await stop.draining.wait()
            return None
    return parts


def worker_view(
    config: WorkerConfig,
    parts: EngineParts,
    epoch: bytes,
    snapshot: EngineSnapshot,
    draining: bool,
    transfer: TransferView,
) -> StateView:
    """What `/state` shows."""
    stats = snapshot.stats
    return StateView(
        role=config.role.value,
        epoch=epoch.hex(),
        pid=os.getpid(),
        revision=config.template_hash,
        blocks_total=parts.capacity.blocks,
        blocks_free=stats.blocks_free + stats.blocks_cached,
        block_tokens=parts.geometry.block_tokens,
        block_bytes=parts.capacity.block_bytes,
        running=stats.running,
        waiting=stats.waiting,
        draining=draining,
        transfer=transfer,
    )


@contextlib.contextmanager
def _background(
    coroutine: Coroutine[Any, Any, None], crashed: Callable[[BaseException], None]
) -> Iterator[asyncio.Task[None]]:
    """Run a coroutine beside the others; if it dies, the process ends."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            crashed(error)

    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(ended)
    try:
        yield task
    finally:
        task.cancel()
