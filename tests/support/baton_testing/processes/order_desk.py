"""The sizer of the pools, in a thread of the test: takes the gateways' links and orders flips, as `baton up` does."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from baton_control.names import Key
from baton_control.telemetry.telemetry_server import TelemetryServer
from baton_testing.processes.child_process import wait_for
from baton_wire.keys import KeyDirectory
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Role

KEY = Key("tests", "flips")


class OrderDesk:
    """A context: it listens while it lasts. `url` is for the gateways."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: TelemetryServer | None = None
        self._listening = contextlib.AsyncExitStack()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/gateways/{KEY.namespace}/{KEY.name}"

    def open(self, keys: Path) -> None:
        """Take links from now on, of gateways that hold these keys."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(KeyDirectory(keys)), self._loop).result(60)

    async def _open(self, keys: KeyDirectory) -> None:
        self._server = TelemetryServer(secrets.token_bytes(16), lambda key: keys, time.monotonic)
        await self._listening.enter_async_context(self._server.serving(self._socket))

    async def _close(self) -> None:
        await self._listening.aclose()
        await asyncio.sleep(0.1)  # connections that gateways ended are closed in later turns of the loop

    def __enter__(self) -> OrderDesk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
        self._loop.close()
        self._socket.close()

    def order(self, *orders: FlipOrder) -> None:
        """Returns at once."""
        assert self._server is not None
        self._loop.call_soon_threadsafe(self._server.order, KEY, orders)

    def flip(self, epoch: str, number: int, role: Role) -> float:
        """Order it and wait until every gateway says that it was carried out; returns the seconds."""
        began_s, worker = time.monotonic(), bytes.fromhex(epoch)
        self.order(FlipOrder(worker, number, role))
        wait_for(lambda: self._is_reported(worker, number, role) or None, f"flip {number} to {role}", 120)
        return time.monotonic() - began_s

    def _is_reported(self, worker: bytes, number: int, role: Role) -> bool:
        return self._in_loop(lambda: self._is_in_summaries(worker, number, role))

    def _is_in_summaries(self, worker: bytes, number: int, role: Role) -> bool:
        assert self._server is not None
        summaries = list(self._server.store(KEY)._summaries())
        return bool(summaries) and all(
            any(
                worker_measures.epoch == worker and worker_measures.flip >= number and worker_measures.role is role
                for worker_measures in summary.workers
            )
            for summary in summaries
        )

    def _in_loop(self, look: Callable[[], bool]) -> bool:
        async def now() -> bool:
            return look()

        return asyncio.run_coroutine_threadsafe(now(), self._loop).result(60)
