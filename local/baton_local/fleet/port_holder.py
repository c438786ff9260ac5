"""The deployment of this machine whose gateway has a port."""

from __future__ import annotations

import contextlib

from baton_local.errors import LocalError
from baton_local.fleet.record import read_record
from baton_local.fleet.run_dir import RunDir, base_directory, is_held


def deployment_at(port: int) -> str | None:
    """NAMESPACE.NAME of the running deployment that has the port; None: none has, as far as can be seen."""
    with contextlib.suppress(LocalError, OSError):
        for folder in sorted(base_directory().iterdir()):
            run = RunDir(folder)
            if is_held(run) and read_record(run).endpoint.endswith(f":{port}"):
                return folder.name
    return None
