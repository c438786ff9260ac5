"""Settings of a worker's side of the KV transfer."""

from __future__ import annotations

import atexit
import contextlib
from dataclasses import replace
from threading import Thread

from baton_kv_transfer.handover import TransferConfig, Verify
from baton_kv_transfer.transports.seam import Transport
from baton_kv_transfer.transports.table import TransportChoice, offered
from baton_wire.errors import TransferError
from baton_wire.messages.values import Role
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError

LOAD_S = 30.0
"""Longest time that UCX may take to start."""
CUDA_PUT_BYTES = 64 << 20
"""On a GPU a PUT, its checksums or its copy to the host cost some tenths of a millisecond, whatever they hold."""
CUDA_SCATTER_BYTES = 4 << 30
"""A hand-over up to this is scattered by one kernel. Its time is the memory's: 0.6 ms a GiB."""
CUDA_PORTION_BYTES = 256 << 20
"""A scatter takes 0.6 ms and 0.15 more for these; in 0.75 ms as many arrive. Smaller hand-overs are scattered once."""
CUDA_GROUP_BYTES = 32 << 20
CUDA_GROUPS = 16
"""Layer groups: what is left when the prompt is computed is the last one."""


class LoadedAhead:
    """Libraries of a worker's transports, loaded while the weights are loaded.

    Failures here are not reported: the transport fails again when it starts, and gives the reason.
    """

    def __init__(self, config: WorkerConfig) -> None:
        """Raises ConfigError as `transports` does."""
        self._threads = [
            Thread(target=_load, args=(transport,), name=f"transport {transport.name}", daemon=True)  # UCX may hang
            for transport in transports(config)
        ]
        for thread in self._threads:
            thread.start()
        atexit.register(self.wait)  # a process that ends while UCX starts is aborted, whatever its exit status was

    def wait(self) -> None:
        """Wait until all are loaded, and no longer than `LOAD_S` for each."""
        for thread in self._threads:
            thread.join(LOAD_S)


def _load(transport: Transport) -> None:
    with contextlib.suppress(TransferError):
        transport.load()


def transports(config: WorkerConfig) -> tuple[Transport, ...]:
    """The transports that the worker offers. Raises ConfigError when this machine lacks what one needs."""
    try:
        return offered(_choice(config))
    except ValueError as error:
        raise ConfigError(f"argument --transport: {error}") from error


def transfer_config(config: WorkerConfig, side: Role) -> TransferConfig:
    """Settings of the worker's prefill or decode side of the KV transfer.

    Raises ConfigError when this machine lacks what they need.
    """
    transports(config)  # refused here, too: an emulated worker loads nothing ahead
    common = TransferConfig(
        verify=Verify(config.verify), transport=_choice(config), min_bytes_per_s=config.min_bandwidth
    )
    if config.device != "cuda":
        return common
    at_once = CUDA_PUT_BYTES if side is Role.PREFILL else CUDA_SCATTER_BYTES
    return replace(
        common,
        max_put_bytes=at_once,
        portion_bytes=CUDA_PORTION_BYTES,
        group_bytes=CUDA_GROUP_BYTES,
        max_groups=CUDA_GROUPS,
    )


def _choice(config: WorkerConfig) -> TransportChoice:
    """The transport that was chosen. KV of several ranks on GPUs goes through the host: a driver exports memory only
    from the process that allocated it, and the pools belong to the ranks' processes."""
    if config.tensor_parallel > 1 and config.device == "cuda":
        return TransportChoice.TCP
    return TransportChoice(config.transport)
