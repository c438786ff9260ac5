"""A worker process from its first flag to its exit: build, connect, listen, serve, drain, stop. All roles share it.

The role brings its messenger and its side of the KV transfer (`RoleParts`); a flexible worker brings both sides. A
`Worker` runs them in three threads: the io thread, the engine thread and the transfer thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from baton_engine.collectives.collective import RankLostError
from baton_engine.scheduling.events import SchedulerEvent
from baton_engine.scheduling.step_load import StepLoad
from baton_wire.errors import AuthenticationError, BadFieldsError
from baton_wire.keys import KeyDirectory
from baton_wire.messages import codec
from baton_wire.messages.gateway_link import Hello, WorkerState
from baton_wire.messages.values import Grammar, RequestKey, Role
from baton_worker.building import engine, paced, ranked_engine
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError
from baton_worker.reporting.cached_places import PlaceQueue
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.reports import StepLog, add_measures, hello, state_view, token_blocks
from baton_worker.reporting.views import EngineSnapshot, StateView, TransferView
from baton_worker.reporting.vllm_names import VllmNames
from baton_worker.serving import process
from baton_worker.serving.endpoints import Endpoints
from baton_worker.serving.engine_thread import EngineThread
from baton_worker.serving.gateway_links import GatewayLinks, Service
from baton_worker.serving.messenger import RunningEngine

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_S = 5.0
"""Bound of each step of taking the process down, after the drain."""
RESTART_AFTER_S = 10.0
"""A process that has had a reason to restart for this long drains and exits; its supervisor starts a fresh one. Longer
than the proofs that empty a quarantine take."""
RESTART_POLL_S = 0.5


class WorkerService(Service, Protocol):
    """The messenger of a worker, or the two of a flexible one: gateways' messages and the engine's events meet here."""

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


class TransferSide(Protocol):
    """The role's side of the KV transfer, run in the transfer thread's loop."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RoleParts:
    """Everything in which the roles differ."""

    service: WorkerService
    transfer: TransferSide
    pair_port: Callable[[], int | None]
    """Known once the transfer has started."""
    transfer_view: Callable[[], TransferView]
    is_idle: Callable[[], bool]
    """True while no hand-over is open on this side."""
    restart_reason: Callable[[], str | None] = lambda: None
    """Why this process should be replaced by a fresh one, if it should."""
    companions: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """Further coroutines of the io loop, run while the worker serves."""
    present_role: Callable[[], Role] | None = None
    """The role that the worker has now; None: the one of its configuration, for good."""


BuildRole = Callable[[WorkerConfig, EngineParts, KeyDirectory, bytes, WorkerMetrics], RoleParts]


async def serve(config: WorkerConfig, stop: process.Stop, build_role: BuildRole) -> None:
    """Run the worker until a stop is asked for. Raises ConfigError when it cannot start."""
    keys = _read_keys(config.keys)
    instruments = Instruments(WorkerMetrics(config.role), StepLog())
    parts = await _build_engine(config, stop, instruments.observe_step)
    if parts is None:
        return
    async with Worker(config, parts, keys, instruments, stop, build_role) as worker:
        await worker.start()
        await worker.run()
        await worker.drain()


@dataclass(frozen=True, slots=True)
class Instruments:
    """The measures of one worker: metrics for scrapes, step timings for gateways."""

    metrics: WorkerMetrics
    step_log: StepLog

    def observe_step(self, step: int, load: StepLoad, seconds: float) -> None:
        """Engine thread: a step was collected."""
        self.metrics.observe_step(load, seconds)
        self.step_log.add(step, load, seconds)


class Worker:
    """A worker with its engine built: `start`, `run` and `drain`, once each and in this order.

    As a context it stops its threads, listeners and background coroutines on exit, the last started first, whatever
    happened before.
    """

    def __init__(
        self,
        config: WorkerConfig,
        parts: EngineParts,
        keys: KeyDirectory,
        instruments: Instruments,
        stop: process.Stop,
        build_role: BuildRole,
    ) -> None:
        self._built_s = time.monotonic()
        self._config = config
        self._parts = parts
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._metrics, self._step_log = instruments.metrics, instruments.step_log
        self._metrics.watch_costs(parts.costs, parts.peak, parts.rank_costs)
        if parts.kernels is not None:
            self._metrics.watch_kernels(parts.kernels)
        self._epoch = process.new_epoch()
        self._role = build_role(config, parts, keys, self._epoch, self._metrics)
        self._service = self._role.service
        self._engine = EngineThread(
            parts.scheduler,
            parts.stepper,
            self._service.on_events,
            self._service.on_cancel,
            self._end_crashed,
            prepare=_ignore_grammar if parts.masks is None else parts.masks.compiler.prepare,
        )
        places = PlaceQueue()
        self._engine.on_places = places.add
        self._service.attach(self._engine)
        self._service.token_blocks = token_blocks(config, parts)
        self._metrics.watch(lambda: self._engine.snapshot, self._role.transfer_view)
        if config.metrics_compat == "vllm":
            blocks, name = parts.pool.num_blocks, config.served_name
            self._metrics.watch_under_vllm_names(
                VllmNames(name, blocks, parts.geometry.block_tokens, lambda: self._engine.snapshot)
            )
        self._links = GatewayLinks(
            self._introduce,
            parts.bundle.data,
            keys,
            self._service,
            self._metrics.altered_frames,
            self._add_measures,
            places,
        )
        self._startup_s: float | None = None
        """Age of the process when its transfer was up; None where it is not known."""
        self._resources = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._resources.callback(self._parts.close)
        self._parts.watch_loss(self._end_crashed)
        if (masks := self._parts.masks) is not None:
            self._metrics.watch_grammars(masks)
            masks.compiler.on_ready = self._engine.look
            self._resources.callback(masks.compiler.close)
        self._transfer_thread = _LoopThread("transfer")
        self._resources.callback(self._transfer_thread.stop, STOP_S)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._resources.__aexit__(*error)

    async def start(self) -> None:
        """Start the KV transfer and the engine. Raises ConfigError when the worker cannot work as configured."""
        await process.await_transfer(self._config, self._transfer_thread.run(self._role.transfer.start()))
        self._startup_s = process.age_s()
        stages = {**self._parts.stages, "connecting": time.monotonic() - self._built_s}
        self._metrics.report_start(stages)
        log.info("start-up: %s", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items()))
        check_hello(self._introduce())
        self._engine.start()
        self._resources.callback(self._engine.stop, STOP_S)

    async def run(self) -> None:
        """Listen, announce the worker as ready, and serve gateways until a drain is asked for."""
        endpoints = Endpoints(
            self._links,
            self._metrics,
            lambda: self._engine.snapshot,
            self._view,
            lambda: not self._service.draining,
        )
        listener = process.listening(endpoints.handle, self._config.listen)
        port = await self._resources.enter_async_context(listener)
        reports = self._links.report_state, self._links.report_places
        for companion in (*reports, self._watch_restart_reason, *self._role.companions):
            self._resources.enter_context(_in_background(companion(), self._end_crashed))
        process.report_ready(self._config, self._epoch, port, self._role.pair_port())
        await self._stop.draining.wait()

    async def drain(self) -> None:
        """Let gateways leave, finish what is open, and stop the transfer. Each wait ends early at a second signal."""
        self._service.leave()
        await self._stop.until(lambda: len(self._links) == 0, process.LEAVE_S)
        self._service.drain()
        await self._stop.until(lambda: self._service.open_requests == 0 and self._role.is_idle(), self._config.drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._transfer_thread.run(self._role.transfer.stop())

    def _end_crashed(self, error: BaseException) -> None:
        """End the process because a thread or a coroutine failed; safe from any thread."""
        self._loop.call_soon_threadsafe(self._stop.on_crash, error)

    async def _watch_restart_reason(self) -> None:
        await drain_for_restart(self._role.restart_reason, self._stop)

    def _present_role(self) -> Role:
        return self._config.role if self._role.present_role is None else self._role.present_role()

    def _introduce(self) -> Hello:
        return hello(self._config, self._parts, self._epoch, self._role.pair_port(), self._present_role())

    def _add_measures(self, state: WorkerState) -> WorkerState:
        return add_measures(state, self._startup_s, self._role.transfer_view(), self._step_log.take())

    def _view(self) -> StateView:
        return state_view(
            self._config,
            self._parts,
            self._epoch,
            self._engine.snapshot,
            self._service.draining,
            self._role.transfer_view(),
            self._present_role(),
        )


def check_hello(hello: Hello) -> None:
    """Raises ConfigError for a worker that every gateway would refuse."""
    try:
        codec.encode(hello)
    except BadFieldsError as error:
        raise ConfigError(f"gateways would refuse this worker: {error}") from error


def _ignore_grammar(grammar: Grammar) -> None:
    """Prepare nothing where grammars are not followed: the request is refused."""


class RestartTimer:
    """Measures for how long there has been a reason to restart without a break."""

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s

    def is_due(self, reason: str | None, now: float) -> bool:
        """True once there has been a reason for `RESTART_AFTER_S`; `reason` is the present one."""
        if reason is None:
            self._since_s = now
        return now - self._since_s >= RESTART_AFTER_S


async def drain_for_restart(reason: Callable[[], str | None], stop: process.Stop) -> None:
    """Ask for a drain once there has been a reason to restart for long enough."""
    timer = RestartTimer(time.monotonic())
    while not timer.is_due(reason(), time.monotonic()):  # noqa: ASYNC110 - another thread's figures, no event
        await asyncio.sleep(RESTART_POLL_S)
    log.warning("draining, to be restarted as a fresh process: %s", reason())
    stop.draining.set()


def _read_keys(path: Path) -> KeyDirectory:
    keys = KeyDirectory(path)
    try:
        keys.current()
    except AuthenticationError as error:
        raise ConfigError(f"argument --keys: {error}") from error
    return keys


async def _build_engine(
    config: WorkerConfig, stop: process.Stop, observe_step: Callable[[int, StepLoad, float], None]
) -> EngineParts | None:
    """The engine, with the seconds of each stage of the start so far; None when a stop was asked for while an
    emulated start-up lasted, and when a rank was lost."""
    imports_s, began_s = process.age_s(), time.monotonic()
    if config.paced is None:
        build = ranked_engine.build if config.has_ranks else engine.build
        try:
            parts = await asyncio.to_thread(build, config, observe_step)
        except RankLostError as error:
            stop.on_crash(error)
            return None
        shape, pool = parts.geometry, parts.pool
        log.info("%d blocks of %d tokens, %d landing bytes", pool.num_blocks, shape.block_tokens, parts.landing_bytes)
    else:
        times = paced.read_times(config.paced)
        parts = await asyncio.to_thread(paced.build, config, times, observe_step)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, times.startup_s - (process.age_s() or 0.0))):
                await stop.draining.wait()
                return None
    return replace(parts, stages=_stages(imports_s, time.monotonic() - began_s, parts.stages))


def _stages(imports_s: float | None, building_s: float, parts: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each stage of the start. Time of building that no part accounts for is called checks."""
    before = {} if imports_s is None else {"imports": imports_s}
    return {**before, "checks": building_s - sum(parts.values()), **parts}


@contextlib.contextmanager
def _in_background(
    coroutine: Coroutine[Any, Any, None], on_crash: Callable[[BaseException], None]
) -> Iterator[asyncio.Task[None]]:
    """Run a coroutine while the context lasts; if it fails, call `on_crash`."""

    def check(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            on_crash(error)

    task = asyncio.ensure_future(coroutine)
    task.add_done_callback(check)
    try:
        yield task
    finally:
        task.cancel()


class _LoopThread:
    """A thread that runs an event loop of its own, so that moving KV never waits for gateway traffic.

    Started in the constructor; `stop` cancels what still runs in the loop and joins the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread's loop and await its result in the caller's."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def stop(self, timeout_s: float) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            self._loop.close()
