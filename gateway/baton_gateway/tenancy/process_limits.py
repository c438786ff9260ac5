"""This process's parts of tenants' limits: what the other end of the operator's link, or the configuration, gives."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.month_meters import MonthMeters
from baton_gateway.tenancy.tenant_meters import TenantMeters
from baton_gateway.tenancy.tenants import Tenants
from baton_gateway.tenancy.usage_files import UsageFiles
from baton_wire.messages.operator_link import LimitMeasure, LimitOrder

POLL_S = 0.05
REPORT_S = 3.0
"""For the last report of a process that stops, and for its acknowledgement."""


class ProcessLimits:
    """The meters of this process, and the parts of limits that they follow. `share`: the part of each limit until an
    order comes. `folder`: where saved counts of tokens of the month are."""

    def __init__(self, tenants: Tenants, share: float, folder: Path | None) -> None:
        self._tenants = tenants
        self.meters, self.months = TenantMeters(share), MonthMeters(share)
        self._files = UsageFiles(folder)
        self._has_order = False  # parts of an order stay without the link, too
        self.read_usage()

    def read_usage(self) -> None:
        """Read what tenants used this month, as it was saved last, where that changed."""
        for shard in self._files.changed():
            self.months.read(shard, time.time())

    def configure(self, share: float, now: float) -> list[Tenant]:
        """Apply the configuration's part of every limit, unless an order came; returns the tenants that changed."""
        return [] if self._has_order else self._set_share(share, now)

    def apply(self, order: LimitOrder, now: float) -> list[Tenant]:
        """Apply an order of the link; returns the tenants whose concurrent sequences changed."""
        self._has_order = True
        changed = self._set_share(1 / order.processes, now)
        slots: dict[str, int] = {}
        for change in order.shares:
            if change.measure is LimitMeasure.CONCURRENT:
                slots[change.tenant] = int(change.share)
            else:
                self.meters.apply(change, now)
        return [*changed, *self._tenants.set_slots(slots)]

    def change_link(self, is_linked: bool) -> None:
        """The operator's link has begun, or has ended."""
        if is_linked:
            self.months.link_begins()
        else:
            self.months.link_ends()

    async def report_rest(self) -> None:
        """Wait until the other end of the link knows what was spent here, or `REPORT_S` long."""
        for _ in range(int(REPORT_S / POLL_S)):
            if not self.months.is_behind:
                return
            await asyncio.sleep(POLL_S)

    def _set_share(self, share: float, now: float) -> list[Tenant]:
        """Set the part of every limit that has none of its own."""
        self.months.set_share(share)
        self.meters.set_default_share(share, now)
        return self._tenants.set_share(share)
