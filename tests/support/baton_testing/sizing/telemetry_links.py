"""An operator process's end of the gateways' links, and gateways that link with it, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from baton_control.names import Key
from baton_control.telemetry.telemetry_server import PATH, TelemetryServer
from baton_gateway.reporting.operator_link import OperatorLink, OperatorSources, OperatorTimes
from baton_gateway.reporting.telemetry import LoadTelemetry
from baton_gateway.tenancy.month_meters import MonthMeters
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.listening.sockets import bind
from baton_wire.messages.measures import Backlog, WorkerCondition, WorkerMeasures
from baton_wire.messages.operator_link import (
    MAX_LIMITS,
    FlipOrder,
    GatewayHello,
    LimitOrder,
    LimitUse,
    TenantConflict,
)
from baton_wire.messages.values import Address, Role
from baton_wire.session import AlteredFrames

KEY = Key("team", "chat")
TIMES = OperatorTimes(summary_s=0.05, first_retry_s=0.02, last_retry_s=0.05, wake_s=0.05)
WORKER = WorkerMeasures(
    Role.DECODE,
    b"w" * 16,
    "1f3a5c7e90",
    Address("10.0.0.1", 8000),
    WorkerCondition.LIVE,
    True,
    0,
    0,
    0,
    16,
    8,
    8,
    0,
    1.0,
)

UPGRADE = (
    f"GET {PATH.format(**KEY._asdict())} HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
).encode()
"""All that is needed to be taken for a gateway that has not proven its key yet."""


@dataclass
class Operator:
    """One operator process's end, on a port of its own."""

    server: TelemetryServer
    port: int
    woken: list[Key] = field(default_factory=list)
    holder: Address | None = None
    is_standby: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH.format(**KEY._asdict())}"


@asynccontextmanager
async def operating(keys: Path, epoch: bytes = b"o" * 16, port: int = 0) -> AsyncIterator[Operator]:
    directory = KeyDirectory(keys)
    server = TelemetryServer(
        epoch,
        lambda key: directory if key == KEY else None,
        time.monotonic,
        lambda key: operator.woken.append(key),
        lambda: (operator.is_standby, operator.holder),
    )
    listening = bind("127.0.0.1", port)
    listening.listen()
    operator = Operator(server, int(listening.getsockname()[1]))
    async with server.serving(listening):
        yield operator


@dataclass
class Gateway:
    telemetry: LoadTelemetry
    link: OperatorLink
    parked: int = 0
    workers: tuple[WorkerMeasures, ...] = ()
    orders: list[FlipOrder] = field(default_factory=list)
    shards: list[bytes] = field(default_factory=list)
    uses: tuple[LimitUse, ...] = ()
    limit_orders: list[LimitOrder] = field(default_factory=list)
    histories: list[bytes] = field(default_factory=list)
    months: MonthMeters = field(default_factory=MonthMeters)
    conflicts: tuple[TenantConflict, ...] = ()


@asynccontextmanager
async def linking(
    keys: Path, url: str, times: OperatorTimes = TIMES, epoch: bytes = b"g" * 16
) -> AsyncIterator[Gateway]:
    loop = asyncio.get_running_loop()
    telemetry = LoadTelemetry(loop.time())

    def backlog() -> Backlog:
        return telemetry.backlog(gateway.parked, gateway.parked, 0.0, gateway.parked)

    sources = OperatorSources(
        lambda: replace(telemetry.summary(loop.time(), time.time(), backlog(), (), "c1"), workers=gateway.workers),
        lambda: gateway.parked,
        lambda: b'{"vocab_size": 9}',
        lambda order: gateway.orders.append(order),
        lambda content: gateway.shards.append(content),
        lambda: gateway.uses,
        lambda order: gateway.limit_orders.append(order),
        lambda content: gateway.histories.append(content),
        lambda is_linked: gateway.months.link_begins() if is_linked else gateway.months.link_ends(),
        lambda: gateway.months.report(MAX_LIMITS),
        lambda totals: gateway.months.take(totals),
        lambda: gateway.conflicts,
    )
    link = OperatorLink(url, KeyDirectory(keys), epoch, GatewayHello("one", 1), sources, AlteredFrames(), times)
    gateway = Gateway(telemetry, link)
    task = asyncio.create_task(link.run())
    try:
        yield gateway
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def keys_in(folder: Path, name: str = "keys") -> Path:
    folder = folder / name
    folder.mkdir()
    write_new_key(folder, "k1")
    return folder


def arrivals(operator: Operator) -> Callable[[], bool]:
    """A condition: any arrival was reported; arrivals stay counted until then."""
    store = operator.server.store(KEY)
    return lambda: store.is_complete(time.monotonic(), 1)
