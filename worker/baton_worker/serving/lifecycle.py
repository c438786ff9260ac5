"""A worker from first flag to last breath, the part that all workers share: build, connect, listen, serve, drain, stop.

The role brings its messenger and its side of the KV transfer (`RoleParts`), a worker that flips brings both; this file
runs them in their three threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from baton_engine.running.step_load import StepLoad
from baton_engine.scheduling.events import SchedulerEvent
from baton_wire.errors import AuthenticationError, BadFieldsError
from baton_wire.keys import KeyDirectory
from baton_wire.messages import codec
from baton_wire.messages.gateway_link import Hello, WorkerState
from baton_wire.messages.values import Grammar, RequestKey, Role
from baton_worker.building import engine, paced
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import hello, state_view, token_blocks, with_measures
from baton_worker.reporting.step_log import StepLog
from baton_worker.reporting.views import EngineSnapshot, StateView, TransferView
from baton_worker.serving import process
from baton_worker.serving.endpoints import Endpoints
from baton_worker.serving.engine_thread import EngineThread
from baton_worker.serving.gateway_links import GatewayLinks, Service
from baton_worker.serving.loop_thread import LoopThread
from baton_worker.serving.messenger import RunningEngine

log = logging.getLogger(__name__)

STOP_S = 5.0
"""Bound of each step of taking the process down, after the drain."""
WORN_S = 10.0
"""A process that should make room for a fresh one for so long drains and ends; whoever supervises it starts the next.
Longer than the proofs that empty a quarantine take."""
WEAR_POLL_S = 0.5


class WorkerService(Service, Protocol):
    """A messenger, or the two of a worker that flips: where gateways' messages and the engine's events meet."""

    token_blocks: Callable[[int], int]

    @property
    def draining(self) -> bool: ...

    @property
    def open_requests(self) -> int: ...

    def attach(self, engine: RunningEngine) -> None: ...

    def on_events(self, snapshot: EngineSnapshot, events: list[SchedulerEvent]) -> None: ...

    def on_cancel(self, key: RequestKey) -> None: ...

    def leave(self) -> None: ...

    def drain(self) -> None: ...


class Mover(Protocol):
    """The role's side of the KV transfer, run in the transfer thread's loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RoleParts:
    service: WorkerService
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
    present_role: Callable[[], Role] | None = None
    """What it does now; None: what its configuration says, for good."""


BuildRole = Callable[[WorkerConfig, EngineParts, KeyDirectory, bytes, WorkerMetrics], RoleParts]


async def serve(config: WorkerConfig, stop: process.Stop, build_role: BuildRole) -> None:
    """Run the worker until a stop is asked for. Raises ConfigError when it cannot start."""
    loop = asyncio.get_running_loop()
    metrics = WorkerMetrics(config.role)
    steps = StepLog()

    def stepped(step: int, load: StepLoad, seconds: float) -> None:
        metrics.stepped(load, seconds)
        steps.add(step, load, seconds)

    keys = _keys(config.keys)
    imports_s, began_s = process.age_s(), time.monotonic()
    parts = await _built(config, stop, stepped)
    if parts is None:
        return
    built_s = time.monotonic()
    metrics.computes(parts.costs, parts.peak)
    if parts.kernels is not None:
        metrics.compiles(parts.kernels)
    epoch = process.new_epoch()
    role = build_role(config, parts, keys, epoch, metrics)
    service, present_role = role.service, role.present_role or (lambda: config.role)

    def crashed(error: BaseException) -> None:
        loop.call_soon_threadsafe(stop.crashed, error)

    masks = parts.masks
    thread = EngineThread(
        parts.scheduler,
        parts.stepper,
        service.on_events,
        service.on_cancel,
        crashed,
        prepare=_nothing if masks is None else masks.compiler.prepare,
    )
    service.attach(thread)
    service.token_blocks = token_blocks(config, parts)
    metrics.watch(lambda: thread.snapshot, role.transfer_view)
    async with contextlib.AsyncExitStack() as stack:
        if masks is not None:
            metrics.follows_grammars(masks)
            masks.compiler.on_ready = thread.look
            stack.callback(masks.compiler.close)
        transfer_thread = LoopThread("transfer")
        stack.callback(transfer_thread.stop, STOP_S)
        await process.bound(config, transfer_thread.run_from_loop(role.mover.start()))
        startup_s = process.age_s()
        stages = _stages(imports_s, built_s - began_s, parts.stages, time.monotonic() - built_s)
        metrics.started(stages)
        log.info("start-up: %s", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items()))

        def measured(state: WorkerState) -> WorkerState:
            return with_measures(state, startup_s, role.transfer_view(), steps.take())

        def introduction() -> Hello:
            return hello(config, parts, epoch, role.pair_port(), present_role())

        check_hello(introduction())
        links = GatewayLinks(introduction, parts.bundle.data, keys, service, metrics.altered_frames, measured)
        thread.start()
        stack.callback(thread.stop, STOP_S)

        def view() -> StateView:
            draining, transfer = service.draining, role.transfer_view()
            return state_view(config, parts, epoch, thread.snapshot, draining, transfer, present_role())

        endpoints = Endpoints(links, metrics, lambda: thread.snapshot, view, lambda: not service.draining)
        port = await stack.enter_async_context(process.listening(endpoints.handle, config.listen))
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


def check_hello(hello: Hello) -> None:
    """Raises ConfigError for a worker that every gateway would refuse."""
    try:
        codec.encode(hello)
    except BadFieldsError as error:
        raise ConfigError(f"gateways would refuse this worker: {error}") from error


def _stages(
    imports_s: float | None, building_s: float, parts: Mapping[str, float], connecting_s: float
) -> dict[str, float]:
    """Seconds of each part of the start. What building took beside its parts is its first: imports and checks."""
    before = {} if imports_s is None else {"imports": imports_s}
    return {**before, "checks": building_s - sum(parts.values()), **parts, "connecting": connecting_s}


def _nothing(grammar: Grammar) -> None:
    """Where none is followed, none is prepared: the request is refused."""


class RestartReason:
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
    wear = RestartReason(time.monotonic())
    while not wear.is_over(why(), time.monotonic()):  # noqa: ASYNC110 - another thread's figures, no event
        await asyncio.sleep(WEAR_POLL_S)
    log.warning("draining, to come back as a fresh process: %s", why())
    stop.draining.set()


def _keys(path: Path) -> KeyDirectory:
    keys = KeyDirectory(path)
    try:
        keys.current()
    except AuthenticationError as error:
        raise ConfigError(f"argument --keys: {error}") from error
    return keys


async def _built(
    config: WorkerConfig, stop: process.Stop, stepped: Callable[[int, StepLoad, float], None]
) -> EngineParts | None:
    """The engine; None when the worker was told to stop while an emulated start-up lasted."""
    if config.paced is None:
        parts = await asyncio.to_thread(engine.build, config, stepped)
        shape, pool = parts.pool.geometry, parts.pool
        log.info("%d blocks of %d tokens, %d landing bytes", pool.num_blocks, shape.block_tokens, parts.landing_bytes)
        return parts
    times = paced.read_times(config.paced)
    parts = await asyncio.to_thread(paced.build, config, times, stepped)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, times.startup_s - (process.age_s() or 0.0))):
            await stop.draining.wait()
            return None
    return parts


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
