"""The site of a deployment that runs on this machine: paths, devices and drain times for its processes."""

from __future__ import annotations

import sys

from baton_control.worker_specs import Device, Site
from baton_local.fleet.emulation import Emulation
from baton_local.fleet.run_dir import RunDir
from baton_wire.messages.values import Role

LOOPBACK = "127.0.0.1"
DRAIN_S = 10.0
"""Time for requests in flight after SIGTERM; shorter than the supervisor waits for a process."""


def local_site(
    run: RunDir,
    model: str,
    chosen: dict[Role, Device],
    link_port: int,
    emulation: Emulation | None,
    longest_s: float,
) -> Site:
    """The site of this machine. `longest_s`: longest duration of a request, which a worker that leaves may finish."""
    return Site(
        python=sys.executable,
        model_path=model,
        keys_path=str(run.keys),
        prefill_discovery=f"file:{run.discovery(Role.PREFILL)}",
        decode_discovery=f"file:{run.discovery(Role.DECODE)}",
        prefill_device=chosen[Role.PREFILL],
        decode_device=chosen[Role.DECODE],
        drain_s=DRAIN_S,
        worker_drain_s=longest_s,
        ledger_path=str(run.ledger),
        batches_path=str(run.batches),
        operator_url=f"http://{LOOPBACK}:{link_port}/gateways",
        paced_path=None if emulation is None else str(run.paced),
    )
