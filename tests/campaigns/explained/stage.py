"""The stage of planted delays: one real service whose worker links and KV link go through proxies that can be slowed
down, and whose processes can be stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from baton_testing.gateway.three_tenants import key_file
from baton_testing.processes.deployment import Deployment, Shape, Worker
from baton_testing.processes.faulty_proxy import CHUNK_BYTES, FaultyProxy
from baton_testing.processes.prepared import Prepared

LOOP_S = 10.0


class DelayingProxy(FaultyProxy):
    """A proxy whose pieces arrive later while it is slowed, as often as they were sent: a long way, not a thin one."""

    def __init__(self) -> None:
        super().__init__()
        self._last_due: dict[asyncio.StreamWriter, float] = {}
        """When the last piece to each side is due: pieces keep their order."""

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                due = max(self._last_due.get(writer, 0.0), loop.time() + max(self._delays_s, default=0.0))
                self._last_due[writer] = due
                loop.call_at(due, writer.write, data)


class ProxyLoop:
    """An event loop in a thread, for proxies. A context."""

    def __enter__(self) -> ProxyLoop:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LOOP_S)
        self.loop.close()

    def start(self, proxy: DelayingProxy, port: int) -> int:
        """Start a proxy before a port of this machine, and return its own port."""
        started = proxy.start("127.0.0.1", 0, ("127.0.0.1", port))
        return asyncio.run_coroutine_threadsafe(started, self.loop).result(LOOP_S)

    def stop(self, proxy: DelayingProxy) -> None:
        asyncio.run_coroutine_threadsafe(proxy.stop(), self.loop).result(LOOP_S)

    @contextlib.contextmanager
    def slowed(self, proxy: DelayingProxy, delay_s: float) -> Iterator[None]:
        """Let each piece that passes a proxy wait before."""
        slow = proxy.slowed(delay_s)
        self._call(slow.__enter__)
        try:
            yield
        finally:
            self._call(lambda: slow.__exit__(None, None, None))

    def _call(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self.loop).result(LOOP_S)


class Stage(Deployment):
    """A deployment whose gateway reaches each worker through a proxy, and whose prefill workers reach decode workers'
    KV listeners through another one."""

    def __init__(self, folder: Path, shape: Shape, starts: Prepared, loop: ProxyLoop) -> None:
        super().__init__(folder, shape, starts)
        self._loop = loop
        self._ports: dict[tuple[str, int], int] = {}
        self.links: dict[str, DelayingProxy] = {}
        """Proxies of the workers' gateway links, by the workers' names."""
        self.lanes: dict[str, DelayingProxy] = {}
        """Proxies of the decode workers' KV listeners."""
        self.hides = False
        """No worker is in a discovery file."""

    def discovery_rows(self, role: str) -> list[dict[str, str | int]]:
        rows: list[dict[str, str | int]] = []
        for worker in self.workers:
            if worker.role == role and worker.port and not self.hides:
                port = self._proxied(self.links, worker, worker.port)
                row: dict[str, str | int] = {"host": worker.host, "port": port}
                if worker.pair_port:
                    row["pair_port"] = self._proxied(self.lanes, worker, worker.pair_port)
                rows.append(row)
        return rows

    def _proxied(self, proxies: dict[str, DelayingProxy], worker: Worker, port: int) -> int:
        name = worker.child.name
        if (name, port) not in self._ports:
            proxies[name] = DelayingProxy()
            self._ports[name, port] = self._loop.start(proxies[name], port)
        return self._ports[name, port]

    def stop(self) -> None:
        super().stop()
        for proxy in (*self.links.values(), *self.lanes.values()):
            self._loop.stop(proxy)

    @contextlib.contextmanager
    def slow_links(self, role: str, delay_s: float) -> Iterator[None]:
        """Slow the gateway links of a role's workers."""
        with contextlib.ExitStack() as stack:
            for worker in self.of_role(role):
                stack.enter_context(self._loop.slowed(self.links[worker.child.name], delay_s))
            yield

    @contextlib.contextmanager
    def slow_lanes(self, delay_s: float) -> Iterator[None]:
        """Slow the KV links of the decode workers."""
        with contextlib.ExitStack() as stack:
            for worker in self.of_role("decode"):
                stack.enter_context(self._loop.slowed(self.lanes[worker.child.name], delay_s))
            yield

    def helpers(self, word: str) -> list[psutil.Process]:
        """The gateway's helper processes whose command has the word in it."""
        children = psutil.Process(self.gateway.pid).children(recursive=True)
        return [child for child in children if any(word in part for part in child.cmdline())]


def tenants(folder: Path) -> Path:
    """Write the file of API keys."""
    folder.mkdir(parents=True, exist_ok=True)
    return key_file(folder)


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes by SIGSTOP for as long as the block lasts."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it was killed meanwhile
                os.kill(pid, signal.SIGCONT)


def after(delay_s: float, action: Callable[[], object]) -> threading.Thread:
    """Start an action in a thread after a delay."""

    def run() -> None:
        time.sleep(delay_s)
        action()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread
