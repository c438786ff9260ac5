"""`python -m baton_decode_worker`: one decode worker process. See `baton_worker.config` for its flags."""

from __future__ import annotations

import asyncio
import sys

from baton_decode_worker.service import DecodeService
from baton_kv_transfer.decode.transfer import DecodeTransfer, LandingMemory
from baton_kv_transfer.landing import full_quarantine
from baton_kv_transfer.transfer_parts import TransferParts
from baton_kv_transfer.transports.table import offered
from baton_wire.keys import KeyDirectory
from baton_wire.messages.values import Role
from baton_worker.building.gpu_memory import landing_device
from baton_worker.building.parts import EngineParts
from baton_worker.building.transfer import transfer_config
from baton_worker.config import ListenAddress, WorkerConfig
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import TransferView
from baton_worker.serving import lifecycle, process


def build_role(
    config: WorkerConfig, parts: EngineParts, keys: KeyDirectory, epoch: bytes, metrics: WorkerMetrics
) -> lifecycle.RoleParts:
    """The decode side: its messenger, and the transfer that prefill workers dial and write to."""
    service = DecodeService(parts.limits, metrics, asyncio.get_running_loop())
    return side(config, parts, keys, epoch, metrics, service)


def side(
    config: WorkerConfig,
    parts: EngineParts,
    keys: KeyDirectory,
    epoch: bytes,
    metrics: WorkerMetrics,
    service: DecodeService,
) -> lifecycle.RoleParts:
    """The decode side of a process: its messenger, connected with a new transfer."""
    listen = config.pair_listen or ListenAddress("127.0.0.1", 0)
    settings, landing_bytes = transfer_config(config, Role.DECODE), parts.landing_bytes
    device = landing_device(parts.pool, landing_bytes, offered(settings.transport))
    transfer = DecodeTransfer(
        TransferParts(epoch=epoch, fingerprint=parts.fingerprint, geometry=parts.geometry, keys=keys, config=settings),
        parts.pools,
        service,
        LandingMemory(landing_bytes, device=device),
        host=listen.host,
        port=listen.port,
        observe_handover=service.observe_handover,
    )
    service.transfer = transfer

    def view() -> TransferView:
        stats = transfer.stats()
        return TransferView(
            transport="+".join(sorted(stats.transports)) or None,
            peers=stats.links,
            altered_frames=stats.altered_frames,
            handovers=stats.handovers.ended.get("landed", 0),
            kv_bytes_sent=0,
            kv_bytes_early=0,
            kv_bytes_received=stats.bytes_received,
        )

    return lifecycle.RoleParts(
        service=service,
        transfer=transfer,
        pair_port=lambda: transfer.port,
        transfer_view=view,
        is_idle=lambda: sum(transfer.stats().handovers.by_state.values()) == 0,
        restart_reason=lambda: full_quarantine(transfer.stats().handovers.landing),
    )


async def serve(config: WorkerConfig, stop: process.Stop) -> None:
    await lifecycle.serve(config, stop, build_role)


if __name__ == "__main__":
    sys.exit(process.run(Role.DECODE, sys.argv[1:], serve))
