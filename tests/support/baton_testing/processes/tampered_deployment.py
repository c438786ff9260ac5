"""A service whose every internal link goes through a proxy that flips bits.

Workers listen on an address of their own; the proxies listen on the same ports of the address that everybody dials.
The telemetry link ends in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from baton_control.names import Key
from baton_control.telemetry.telemetry_server import PATH, TelemetryServer
from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import Starts, get_text
from baton_testing.processes.deployment import Deployment, Shape, Worker
from baton_testing.processes.tampering_proxy import TamperingProxy, Way
from baton_wire.keys import KeyDirectory
from baton_wire.listening.sockets import bind

WORKERS_HOST, PROXIES_HOST = "127.0.0.2", "127.0.0.1"
PROXIES_S = 60.0
"""Until the proxies of a worker listen."""
KEY = Key("default", "tiny")
LINKS = ("gateway-prefill", "gateway-decode", "prefill-decode control", "prefill-decode data", "gateway-operator")
_ALTERED = re.compile(r"^baton\w*_altered_frames_total\S* (\S+)$", re.M)


class BehindProxies(Deployment):
    """Workers at an address of their own, whose peers dial their proxies.

    `start_proxies` starts the proxies of a worker that has announced itself, once, before the worker is published. It
    runs in the event loop in which the deployment was made. `publish` waits for it, in another thread.
    """

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        start_proxies: Callable[[Worker], Coroutine[Any, Any, None]],
        starts: Starts | None = None,
    ) -> None:
        super().__init__(folder, shape, starts)
        self._start_proxies, self._loop = start_proxies, asyncio.get_running_loop()
        self._proxied: set[str] = set()
        """Names of workers whose proxies listen, or did."""
        self._held: list[socket.socket] = []

    def host_of(self, name: str) -> str:
        return WORKERS_HOST

    def dialled_host(self, worker: Worker) -> str:
        return PROXIES_HOST

    def held_port(self) -> int:
        """One that is free at both addresses, and stays so until worker and proxy have taken it."""
        while True:
            held = bind(PROXIES_HOST, 0)
            self._held.append(held)
            port = int(held.getsockname()[1])
            with contextlib.suppress(OSError):
                self._held.append(bind(WORKERS_HOST, port))
                return port

    def stop(self) -> None:
        super().stop()
        for proxy in self._held:
            proxy.close()

    def publish(self) -> None:
        with self._publishing:
            for worker in self.workers:
                if worker.port and worker.child.name not in self._proxied:
                    asyncio.run_coroutine_threadsafe(self._start_proxies(worker), self._loop).result(PROXIES_S)
                    self._proxied.add(worker.child.name)
            super().publish()


class TamperedDeployment:
    """A context. `ways` has every direction of every link, with the proxies that it goes through."""

    def __init__(self, folder: Path, draw: random.Random, shape: Shape, model: str = "tiny") -> None:
        self._draw, self._operator = draw, TelemetryServer(b"o" * 16, self._keys, time.monotonic)
        self._folder, self._shape, self._model = folder, shape, model
        self.ways: dict[Way, list[TamperingProxy]] = {}
        self._proxies: list[TamperingProxy] = []
        self.service: BehindProxies
        self._listening = contextlib.AsyncExitStack()

    def _keys(self, key: Key) -> KeyDirectory | None:
        return KeyDirectory(self._folder / "keys") if key == KEY else None

    async def __aenter__(self) -> TamperedDeployment:
        tiny_llama.tokenizer()
        listening = bind(WORKERS_HOST, 0)
        listening.listen()
        await self._listening.enter_async_context(self._operator.serving(listening))
        here = (WORKERS_HOST, int(listening.getsockname()[1]))
        port = await self._proxy(("gateway-operator",), 0, here)
        url = f"--operator=http://{PROXIES_HOST}:{port}{PATH.format(**KEY._asdict())}"
        flags = (*self._shape.gateway_flags, url)
        shape = Shape(
            *(self._shape.prefill, self._shape.decode, 1),
            worker_flags=self._shape.worker_flags,
            gateway_flags=(*flags, "--disaggregation=always"),
        )
        self.service = BehindProxies(self._folder, shape, self._stand_in)
        try:
            await asyncio.to_thread(self.service.start)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if hasattr(self, "service"):
            await asyncio.to_thread(self.service.stop)
        for proxy in self._proxies:
            await proxy.stop()
        await self._listening.aclose()

    def altered_frames(self) -> int:
        """As the metrics of gateway, workers and operator count them together."""
        pages = [worker.metrics() for worker in self.service.workers]
        pages.append(get_text(f"http://127.0.0.1:{self.service.admin_port}/metrics"))
        return self._operator.altered.count + int(sum(float(n) for page in pages for n in _ALTERED.findall(page)))

    async def _stand_in(self, worker: Worker) -> None:
        await self._proxy((f"gateway-{worker.role}",), worker.port, (WORKERS_HOST, worker.port))
        if worker.pair_port is not None:
            links = ("prefill-decode control", "prefill-decode data")
            await self._proxy(links, worker.pair_port, (WORKERS_HOST, worker.pair_port))

    async def _proxy(self, links: tuple[str, ...], port: int, target: tuple[str, int]) -> int:
        proxy = TamperingProxy(links, self._draw)
        self._proxies.append(proxy)
        for link in links:
            for is_back in (False, True):
                self.ways.setdefault(Way(link, is_back), []).append(proxy)
        return await proxy.start(PROXIES_HOST, port, target)
