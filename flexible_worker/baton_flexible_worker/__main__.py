"""`python -m baton_flexible_worker`: a worker of either role. See `baton_worker.config` for its flags."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from baton_decode_worker import __main__ as decode_worker
from baton_flexible_worker.service import FlexibleService
from baton_prefill_worker import __main__ as prefill_worker
from baton_wire.discovery import DnsSource, Endpoint, parse_source, watch
from baton_wire.keys import KeyDirectory
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import TransferView
from baton_worker.serving import lifecycle, process


class BothSides:
    """Both sides of the KV transfer in one loop. The decode side starts first, because peers dial it."""

    def __init__(self, decode: lifecycle.TransferSide, prefill: lifecycle.TransferSide) -> None:
        self._decode, self._prefill = decode, prefill

    async def start(self) -> None:
        await self._decode.start()
        await self._prefill.start()

    async def stop(self) -> None:
        await self._prefill.stop()
        await self._decode.stop()


def build_role(
    config: WorkerConfig, parts: EngineParts, keys: KeyDirectory, epoch: bytes, metrics: WorkerMetrics
) -> lifecycle.RoleParts:
    """Both sides of the hand-over, built as the two workers build theirs, around one engine."""
    service = FlexibleService(config.role, parts.limits, metrics, asyncio.get_running_loop())
    decode = decode_worker.side(config, parts, keys, epoch, metrics, service.decode)
    transfer = prefill_worker.transfer_of(config, parts, keys, epoch, service.prefill)
    prefill = prefill_worker.side(service.prefill, transfer)
    peers: dict[str, tuple[Endpoint, ...]] = {}

    def link_peers(spec: str, endpoints: Iterable[Endpoint]) -> None:
        """Link every worker that may decode before its first hand-over. A file names pair ports only of workers that
        can decode; a DNS name resolves to such workers alone.
        """
        is_dns = isinstance(parse_source(spec), DnsSource)
        peers[spec] = tuple(endpoint for endpoint in endpoints if is_dns or endpoint.pair_port is not None)
        transfer.discovered(sorted({endpoint for known in peers.values() for endpoint in known}, key=str))

    async def discover() -> None:
        specs = [spec for spec in (config.decode_discovery, config.prefill_discovery) if spec is not None]
        async with asyncio.TaskGroup() as watching:
            for spec in specs:
                watching.create_task(watch(spec, lambda endpoints, spec=spec: link_peers(spec, endpoints)))  # type: ignore[misc]

    return lifecycle.RoleParts(
        service=service,
        transfer=BothSides(decode.transfer, prefill.transfer),
        pair_port=decode.pair_port,
        transfer_view=lambda: add_views(prefill.transfer_view(), decode.transfer_view()),
        is_idle=lambda: prefill.is_idle() and decode.is_idle(),
        restart_reason=decode.restart_reason,
        companions=(discover,),
        present_role=lambda: service.role,
    )


def add_views(prefill: TransferView, decode: TransferView) -> TransferView:
    """Add up what both sides of the transfer have moved."""
    transports = {name for view in (prefill, decode) for name in (view.transport or "").split("+") if name}
    return TransferView(
        transport="+".join(sorted(transports)) or None,
        peers=prefill.peers + decode.peers,
        handovers=prefill.handovers + decode.handovers,
        kv_bytes_sent=prefill.kv_bytes_sent,
        kv_bytes_early=prefill.kv_bytes_early,
        kv_bytes_received=decode.kv_bytes_received,
        altered_frames=prefill.altered_frames + decode.altered_frames,
        links=prefill.links,
    )


async def serve(config: WorkerConfig, stop: process.Stop) -> None:
    await lifecycle.serve(config, stop, build_role)


if __name__ == "__main__":
    sys.exit(process.run(None, sys.argv[1:], serve))
