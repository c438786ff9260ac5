"""Sizes the pools of the one deployment that runs here, in mode SLO; in the other modes they keep their size.

`baton up` takes the operator's part: it accepts the gateway's telemetry link on loopback and calls the same sizing. The
memory of sizing is kept in the run directory for the next run.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from baton_control.names import Key
from baton_control.sizing.decision.scaling import Sized, SizingRequest
from baton_control.sizing.inputs.deployment import Prior
from baton_control.sizing.inputs.memory import MAX_SAVED_BYTES
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.metrics import SizingMetrics
from baton_control.sizing.slo_sizing import SloSizing
from baton_control.spec.api import LLMDeployment, ScalingMode
from baton_control.telemetry.month_counts import MonthCounts
from baton_control.telemetry.store import TelemetryStore
from baton_control.telemetry.telemetry_server import TelemetryServer
from baton_control.telemetry.tenant_metrics import TenantUse
from baton_control.worker_specs import pool_spec
from baton_local.fleet.desired_processes import Routable, SlotSpec, pools_now
from baton_local.fleet.run_dir import write_private
from baton_wire.deployment_history import DeploymentHistory
from baton_wire.keys import KeyDirectory
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import POOL_ROLES, Role

log = logging.getLogger(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Scaling:
    """The sizes of the pools. `on_wake` is called when requests wait for workers."""

    def __init__(
        self,
        deployment: LLMDeployment,
        keys: KeyDirectory,
        epoch: bytes,
        memory_file: Path,
        on_wake: Callable[[], None],
        prior: Prior | None = None,
        adjust: Callable[[SizingSpec], SizingSpec] = lambda spec: spec,
    ) -> None:
        metadata = deployment.metadata
        self._key = Key(metadata.namespace, metadata.name)
        self._deployment = deployment
        self._memory_file = memory_file
        self._memory = _read(memory_file)
        self._server = TelemetryServer(
            epoch, lambda key: keys if key == self._key else None, time.monotonic, lambda key: on_wake()
        )
        self._sizing = SloSizing(self._server.store, time.monotonic, prior, adjust=adjust)
        self._registry = CollectorRegistry()
        self._metrics = SizingMetrics(self._registry)
        self._registry.register(TenantUse(self._server.limit_shares))

    @property
    def mode(self) -> ScalingMode:
        return self._deployment.spec.autoscaling.mode

    @property
    def store(self) -> TelemetryStore:
        return self._server.store(self._key)

    @contextlib.asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Accept the gateways' links on a bound socket while the context lasts."""
        async with self._server.serving(listening, {"/metrics": self._page}):
            yield

    def routable(self) -> Routable | None:
        """Number of routable workers by role and template; None: unknown now."""
        gateway = self._deployment.spec.gateway
        return self.store.routable(time.monotonic(), gateway.processes)

    def order(self, flips: tuple[FlipOrder, ...]) -> None:
        """Have the gateways pass these orders on to workers, until the next call replaces them."""
        self._server.order(self._key, flips)

    def set_counts(self, counts: MonthCounts) -> None:
        """Have the gateways follow, and report to, these counts of tokens of the month."""
        self._server.tenants.set_counts(self._key.namespace, counts)

    def announce(self, history: DeploymentHistory) -> None:
        """Send the history to the gateways, which show it on their page."""
        self._server.set_history(self._key, history)

    def size(self, running: Iterable[SlotSpec], routable: Routable | None) -> Sized:
        """The number of workers that each pool should have now."""
        pools = pools_now(running, routable)
        if self.mode is not ScalingMode.SLO:
            sized = self._keep_sizes({role: pools[role].workers for role in POOL_ROLES})
        else:
            request = SizingRequest(self._key, self._deployment, pools, self._memory, time.time(), gateways=1)
            sized = self._sizing.decide(request)
            self._save(sized.memory)
        self._metrics.saw(self._key, sized, pools)
        return sized

    def _keep_sizes(self, workers: dict[Role, int]) -> Sized:
        """Sizes in the modes other than SLO: the pools start at their minimum and keep their size."""
        sizes = {role: max(pool_spec(self._deployment, role).replicas.min, workers[role]) for role in POOL_ROLES}
        reasons = {role: f"{role.value} {sizes[role]}: mode {self.mode}, not sized here" for role in sizes}
        return Sized(sizes, reasons, True)

    def _save(self, memory: str | None) -> None:
        if memory is None or memory == self._memory:
            return
        self._memory = memory
        try:
            write_private(self._memory_file, memory)
        except OSError as error:
            log.warning("cannot save the memory of sizing: %s", error)

    async def _page(self, request: web.BaseRequest) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": METRICS_TYPE})


def _read(path: Path) -> str | None:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MAX_SAVED_BYTES + 1)
    except (OSError, UnicodeDecodeError):
        return None


def in_flags(reason: str) -> str:
    """The reason of a pool's size for somebody without a manifest: with flags of `baton up` in place of fields.

    >>> in_flags("misses the target of 500 ms: at spec.prefill.replicas.max, 1 worker")
    'misses the target of 500 ms: at the most that --prefill allows, 1 worker'
    """
    return re.sub(r"spec\.(prefill|decode)\.replicas\.max", r"the most that --\1 allows", reason)
