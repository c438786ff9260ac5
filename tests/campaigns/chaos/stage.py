"""The service that chaos hits: two workers of each role behind proxies, one gateway for three tenants, a stepped clock.

Processes that die are restarted. Everything ends with the context.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil

from baton_testing.gateway.three_tenants import key_file
from baton_testing.processes.child_process import Child, Starts, get_json
from baton_testing.processes.deployment import START_S, Shape, Worker
from baton_testing.processes.faulty_proxy import FaultyProxy
from baton_testing.processes.lying_worker import LyingWorker, liar_like
from baton_testing.processes.prepared import service
from baton_testing.processes.repairs import Repairs
from baton_testing.processes.shifted_clock import ShiftedClock
from baton_testing.processes.tampered_deployment import PROXIES_HOST, WORKERS_HOST, BehindProxies
from baton_wire.listening.sockets import bind
from baton_wire.messages.values import Role

KV_BYTES = 16 << 20
QUEUE_S = 20.0
"""Short enough that some requests are refused: refusals are judged."""
REVIVE_S = 0.2


class _Service(BehindProxies):
    """Its gateway keeps its port over restarts, and workers that are no processes of its own can be found too."""

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        start_proxies: Callable[[Worker], Coroutine[Any, Any, None]],
        starts: Starts,
    ) -> None:
        super().__init__(folder, shape, start_proxies, starts)
        self.liars: list[LyingWorker] = []
        self.gateways = 0

    def discovery_rows(self, role: str) -> list[dict[str, str | int]]:
        rows = super().discovery_rows(role)
        pair_port = next((w.pair_port for w in self.of_role("decode") if w.pair_port), None)
        for liar in [worker for worker in self.liars if worker.role.value == role]:
            pair = {"pair_port": pair_port} if liar.role is Role.DECODE and pair_port else {}
            rows.append({"host": PROXIES_HOST, "port": liar.port, **pair})
        return rows

    def start_gateway_again(self) -> None:
        """In the place of one that has ended, on its port."""
        self.gateways += 1
        self.gateway.stop()
        self.gateway.log.replace(self.gateway.log.with_name(f"gateway-{self.gateways}.log"))
        (self.folder / "gateway.json").unlink(missing_ok=True)
        self._start_gateway()


class Stage:
    """A context."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self._folder, self._draw = folder, draw
        self._proxies: dict[str, list[FaultyProxy]] = {}
        """By the worker's name: its link port's, and its pair port's."""
        self.repairs = Repairs()
        self._watch: asyncio.Task[None] | None = None
        self._stack = contextlib.AsyncExitStack()
        self.service: _Service
        self.clock: ShiftedClock | None = None
        self.no_clock = ""
        """Why the clock cannot be stepped."""
        self.gateway_deaths: list[float] = []
        """Times of the loop's clock."""
        self.gateway_ready_s = 0.0
        """When the latest gateway began to listen; infinite: it is still to."""

    async def __aenter__(self) -> Stage:
        try:
            self._with_clock()
            prepared = self._stack.enter_context(service())
            port = self._free_port()
            flags = (f"--api-keys={key_file(self._folder)}", f"--listen={PROXIES_HOST}:{port}", "--drain-s=2")
            workers = ("--dtype", "float32", "--kv-cache-bytes", str(KV_BYTES), "--drain-s", "2")
            shape = Shape(2, 2, gateway_flags=flags, worker_flags=workers, max_queue_s=QUEUE_S)
            self.service = _Service(self._folder / "service", shape, self._start_proxies, prepared)
            self._stack.push_async_callback(self._stop)
            await asyncio.to_thread(self.service.start)
            self._watch = asyncio.create_task(self._revive_forever())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _with_clock(self) -> None:
        try:
            self.clock = ShiftedClock(self._folder)
        except (OSError, ValueError) as error:
            self.no_clock = str(error)
            return
        os.environ.update(self.clock.environment)  # of all that this process starts; itself it has begun without
        self._stack.callback(lambda: [os.environ.pop(name, None) for name in ("LD_PRELOAD", "BATON_TEST_CLOCK")])

    @staticmethod
    def _free_port() -> int:
        with bind(PROXIES_HOST, 0) as held:
            return int(held.getsockname()[1])

    async def _start_proxies(self, worker: Worker) -> None:
        ports = [port for port in (worker.port, worker.pair_port) if port is not None]
        self._proxies[worker.child.name] = proxies = [FaultyProxy() for _ in ports]
        try:
            for proxy, port in zip(proxies, ports, strict=True):
                await proxy.start(PROXIES_HOST, port, (WORKERS_HOST, port))
        except BaseException:
            await self._stop_proxies(worker)
            raise

    async def _stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.repairs.stop(START_S)
        for liar in self.service.liars:
            await liar.stop()
        for process in self._stopped_processes():
            process.resume()
        await asyncio.to_thread(self.service.stop)
        for proxy in [proxy for proxies in self._proxies.values() for proxy in proxies]:
            await proxy.stop()

    def _stopped_processes(self) -> Iterator[psutil.Process]:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_STOPPED:
                    yield process

    # Present processes ------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        return self.service.port

    def workers(self) -> list[Worker]:
        """The workers that run, by name."""
        return sorted(
            (worker for worker in self.service.workers if worker.child.is_running()), key=lambda w: w.child.name
        )

    def gateway(self) -> psutil.Process | None:
        child: Child = self.service.gateway
        try:
            return psutil.Process(child.pid) if child.is_running() else None
        except psutil.NoSuchProcess:
            return None

    def helpers(self) -> list[psutil.Process]:
        """The gateway's helper processes, the oldest first."""
        gateway = self.gateway()
        try:
            return [] if gateway is None else sorted(gateway.children(recursive=True), key=lambda process: process.pid)
        except psutil.NoSuchProcess:
            return []

    def proxies_of(self, worker: Worker) -> list[FaultyProxy]:
        return self._proxies.get(worker.child.name, [])

    def gateway_state(self) -> Any:
        page = get_json(f"http://127.0.0.1:{self.service.admin_port}/state", 5.0)
        return None if page is None else page["processes"][0]

    def gateway_logs(self) -> str:
        """The logs of all gateways so far."""
        files = sorted(self.service.folder.glob("gateway*.log"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    # Repairs ----------------------------------------------------------------------------------------------------------

    async def _revive_forever(self) -> None:
        while True:
            await asyncio.sleep(REVIVE_S)
            if not self.service.gateway.is_running():
                self.gateway_ready_s = float("inf")
                self.repairs.begin("gateway", self._start_gateway_again)
            for worker in self.service.workers:
                if not worker.child.is_running():
                    self.repairs.begin(worker.child.name, functools.partial(self._replace, worker))

    async def _start_gateway_again(self) -> None:
        await asyncio.to_thread(self.service.start_gateway_again)
        self.gateway_ready_s = asyncio.get_running_loop().time()

    async def _replace(self, worker: Worker) -> None:
        await self._stop_proxies(worker)
        await asyncio.to_thread(self.service.replace, worker)

    async def _stop_proxies(self, worker: Worker) -> None:
        for proxy in self._proxies.pop(worker.child.name, []):
            await proxy.stop()

    async def until_whole(self, within_s: float = START_S) -> None:
        """All workers and the gateway run and are linked. Raises TimeoutError, and what ended the repairs."""
        async with asyncio.timeout(within_s):
            while not await self._is_whole():
                if self._watch is not None and self._watch.done():
                    self._watch.result()
                await asyncio.sleep(0.2)

    async def _is_whole(self) -> bool:
        if self.repairs.are_open or not self.service.gateway.is_running():
            return False
        state = await asyncio.to_thread(self.gateway_state)
        return state is not None and state["workers_linked"] == len(self.service.workers)

    @contextlib.asynccontextmanager
    async def lying_worker(self) -> AsyncIterator[None]:
        """A worker with the key of the deployment next to the real workers. Raises ProcessLookupError where no real
        worker can be copied.
        """
        role = self._draw.choice((Role.PREFILL, Role.DECODE))
        copied = next((worker for worker in self.workers() if worker.role == role.value and worker.port), None)
        if copied is None:
            raise ProcessLookupError(f"no {role.value} worker runs")
        liar = await liar_like(copied.base_url, self.service.keys, role, self._draw)
        await liar.start()
        try:
            self.service.liars.append(liar)
            await asyncio.to_thread(self.service.publish)
            yield
        finally:
            self.service.liars.remove(liar)
            try:
                await asyncio.to_thread(self.service.publish)
            finally:
                await liar.stop()
