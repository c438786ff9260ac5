"""`baton down`: stops a running deployment from another terminal."""

from __future__ import annotations

import os
import signal
import time

from baton_local.errors import LocalError, StartError
from baton_local.fleet.run_dir import RunDir, base_directory, find_run, holder, is_held

POLL_S = 0.1


class NotStoppedError(LocalError):
    """The deployment did not stop."""


def chosen_name(positional: str | None, option: str | None) -> str | None:
    """The name of the deployment, given in either way. Raises StartError for two names."""
    if None not in (positional, option) and positional != option:
        raise StartError(f"{positional} and --name {option}: only one deployment can be stopped at a time")
    return option or positional


def run_down(name: str | None, patience_s: float) -> int:
    """Stop a deployment as Ctrl-C does, and wait until it has stopped. Raises LocalError."""
    run = find_run(base_directory(), name)
    pid = holder(run)
    if pid is None:
        raise NotStoppedError(f"{run.lock} does not say which process runs {run.root.name}: stop its `baton up`")
    try:
        os.kill(pid, signal.SIGTERM)
        if not _ends(run, patience_s):
            os.kill(pid, signal.SIGTERM)  # a second signal kills all its processes at once
            if not _ends(run, patience_s):
                raise NotStoppedError(f"{run.root.name} (pid {pid}) did not stop within {2 * patience_s:g} s")
    except ProcessLookupError:
        pass  # it ended by itself
    except PermissionError as error:
        raise NotStoppedError(f"{run.root.name} (pid {pid}) belongs to another user") from error
    print(f"baton: stopped {run.root.name}")
    return 0


def _ends(run: RunDir, patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while is_held(run):
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True
