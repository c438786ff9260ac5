"""The site that a laptop is for the processes of a deployment: its paths, devices and waits."""

from __future__ import annotations

import sys

from baton_control.worker_specs import Device, Site
from baton_local.fleet.emulation import Emulation
from baton_local.fleet.run_dir import RunDir
from baton_wire.messages.values import Role

LOOPBACK = "127.0.0.1"
DRAIN_S = 10.0
"""For requests in flight when told to stop; less than the supervisor's patience with a process."""


def local_site(
    run: RunDir,
    model: str,
    chosen: dict[Role, Device],
    link_port: int,
    emulation: Emulation | None,
    longest_s: float,
) -> Site:
    """What this machine decides for all processes of a deployment.

    `longest_s`: how long a request may take; a worker that leaves while others go on finishes its own.
    """
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
        operator_url=f"http://{LOOPBACK}:{link_port}/gateways",
        paced_path=None if emulation is None else str(run.paced),
    )
