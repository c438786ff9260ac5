"""`baton logs`: the logs of a deployment's processes, of the last run when none is running."""

from __future__ import annotations

import time

from baton_local.errors import StartError
from baton_local.fleet.log_tail import labelled, read_from
from baton_local.fleet.run_dir import RunDir, base_directory, find_run, is_held

POLL_S = 0.2


def run_logs(process: str | None, name: str | None, follow: bool) -> int:
    """Print the logs, and with `follow` also new lines until the deployment stops. Raises LocalError."""
    run = find_run(base_directory(), name, must_run=False)
    positions: dict[str, int] = {}
    _print_new(run, process, positions)
    while follow and is_held(run):
        time.sleep(POLL_S)
        _print_new(run, process, positions)
    return 0


def _print_new(run: RunDir, process: str | None, positions: dict[str, int]) -> None:
    names = sorted(path.stem for path in run.logs.glob("*.log"))
    if process is not None and process not in names:
        raise StartError(f"no process {process}: there are {', '.join(names) or 'none'}")
    for name in names if process is None else [process]:
        text, positions[name] = read_from(run.log(name), positions.get(name, 0))
        for line in labelled(name, text) if process is None else text.splitlines():
            print(line, flush=True)
