"""The links of all gateways with the operator's process: one listener, and the telemetry and sizing behind it.

A deployment's link keys are derived from the operator's master keys and the deployment's uid, so that gateways of a
former deployment of the same name cannot link. A process that waits for the Lease listens too: it knows the deployments
as well, and redirects gateways to the process that holds the Lease.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping

from baton_control.names import Key
from baton_control.telemetry.telemetry_server import DerivedKeys, TelemetryServer, address
from baton_operator.gateway_telemetry import GatewayTelemetry
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.kinds import DEPLOYMENTS
from baton_operator.kube.object_fields import Manifest, is_leaving, uid_of
from baton_operator.sizing_on_demand import SizingOnDemand
from baton_wire.listening.sockets import bind

log = logging.getLogger(__name__)
EPOCH_BYTES = 16
BACKLOG = 1_024


class DeploymentLinks:
    """The links of every deployment. `masters`: the present master keys. `offer` queues a deployment for a pass.
    `holder`: where the process with the Lease listens; None: unknown."""

    def __init__(
        self,
        custom: CustomResources,
        masters: Callable[[], Mapping[str, bytes]],
        offer: Callable[[Key], None],
        holder: Callable[[], str | None],
    ) -> None:
        self._masters, self._holder = masters, holder
        self.is_active = False
        """True while this process holds the Lease."""
        self._deployments = custom.caches[DEPLOYMENTS]
        custom.listeners.append(self._changed)
        self.server = TelemetryServer(
            secrets.token_bytes(EPOCH_BYTES),
            self._keys,
            time.monotonic,
            offer,
            lambda: (not self.is_active, None if self.is_active else address(self._holder())),
        )
        self.telemetry = GatewayTelemetry(self.server.store, time.monotonic, self.server.order)
        self.sizing = SizingOnDemand(self.server.store, time.monotonic)

    @contextlib.asynccontextmanager
    async def serving(self, listen: tuple[str, int]) -> AsyncIterator[int]:
        """Accept links while the block runs; yields the port."""
        listening = bind(*listen)
        listening.listen(BACKLOG)
        async with self.server.serving(listening):
            yield int(listening.getsockname()[1])

    def _live(self, key: Key) -> Manifest | None:
        live = self._deployments.get(*key)
        return None if live is None or is_leaving(live) else live

    def _keys(self, key: Key) -> DerivedKeys | None:
        live = self._live(key)
        return None if live is None else DerivedKeys(self._masters, uid_of(live))

    def _changed(self, key: Key) -> None:
        if self._live(key) is None:
            self.server.forget(key)
            self.sizing.forget(key)
