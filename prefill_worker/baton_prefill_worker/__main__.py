"""`python -m baton_prefill_worker`: one prefill worker process. See `baton_worker.config` for its flags."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.table import offered
from baton_prefill_worker.service import PrefillService
from baton_wire.discovery import watch
from baton_wire.keys import KeyDirectory
from baton_wire.messages.values import Role
from baton_worker.building.gpu_memory import pool_device, staging
from baton_worker.building.parts import EngineParts
from baton_worker.building.transfer import transfer_config
from baton_worker.config import WorkerConfig
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import TransferView
from baton_worker.serving import lifecycle, process


def build_role(
    config: WorkerConfig, parts: EngineParts, keys: KeyDirectory, epoch: bytes, metrics: WorkerMetrics
) -> lifecycle.RoleParts:
    """The prefill side: its messenger, and the transfer that dials decode workers and sends to them."""
    service = PrefillService(parts.limits, metrics, asyncio.get_running_loop())
    transfer = transfer_of(config, parts, keys, epoch, service)

    async def discover() -> None:
        if config.decode_discovery is not None:
            await watch(config.decode_discovery, transfer.discovered)

    return replace(side(service, transfer), companions=(discover,))


def transfer_of(
    config: WorkerConfig, parts: EngineParts, keys: KeyDirectory, epoch: bytes, service: PrefillService
) -> PrefillTransfer:
    """Build the transfer, and connect it with the messenger."""
    settings = transfer_config(config, Role.PREFILL)
    transfer = PrefillTransfer(
        TransferParts(epoch=epoch, fingerprint=parts.fingerprint, geometry=parts.geometry, keys=keys, config=settings),
        parts.pools,
        service,
        device=pool_device(parts.pool, offered(settings.transport)),
        staging=staging(parts.pool),
        observe_handover=service.observe_handover,
    )
    service.transfer, service.ranks = transfer, len(parts.pools)
    parts.watch_layers(service.on_layers)
    return transfer


def side(service: PrefillService, transfer: PrefillTransfer) -> lifecycle.RoleParts:
    """The prefill side of a process: its messenger and its transfer."""

    def view() -> TransferView:
        stats = transfer.stats()
        return TransferView(
            transport="+".join(sorted(stats.lanes)) or None,
            peers=stats.links,
            altered_frames=stats.altered_frames,
            handovers=stats.handovers.ended.get("done", 0),
            kv_bytes_sent=stats.bytes_sent,
            kv_bytes_early=stats.handovers.overlapped_bytes,
            kv_bytes_received=0,
            links=stats.pairs,
        )

    return lifecycle.RoleParts(
        service=service,
        transfer=transfer,
        pair_port=lambda: None,
        transfer_view=view,
        is_idle=lambda: sum(transfer.stats().handovers.by_state.values()) == 0,
    )


async def serve(config: WorkerConfig, stop: process.Stop) -> None:
    await lifecycle.serve(config, stop, build_role)


if __name__ == "__main__":
    sys.exit(process.run(Role.PREFILL, sys.argv[1:], serve))
