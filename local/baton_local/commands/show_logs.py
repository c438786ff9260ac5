"""`baton logs`: the logs of a deployment's processes, of the last run when none is running."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from baton_local.errors import StartError
from baton_local.fleet.log_tail import merge_logs, read_from
from baton_local.fleet.run_dir import RunDir, base_directory, find_run, is_held

POLL_S = 0.2


def run_logs(process: str | None, name: str | None, follow: bool) -> int:
    """Print the logs, and with `follow` also new lines until the deployment stops. Raises LocalError."""
    run = find_run(base_directory(), name, must_run=False)
    positions: dict[str, int] = {}
    if not is_held(run):
        print(f"baton: {run.root.name} has ended; its last logs:", file=sys.stderr)
    _print_new(run, process, positions)
    while follow and is_held(run):
        time.sleep(POLL_S)
        _print_new(run, process, positions)
    return 0


def _print_new(run: RunDir, process: str | None, positions: dict[str, int]) -> None:
    names = sorted(path.stem for path in run.logs.glob("*.log"))
    chosen = names if process is None else matching(names, process)
    if process is not None and not chosen:
        raise StartError(f"no process {process}: there are {', '.join(names) or 'none'}")
    texts: dict[str, str] = {}
    for name in chosen:
        texts[name], positions[name] = read_from(run.log(name), positions.get(name, 0))
    if len(chosen) == 1:
        print(texts[chosen[0]], end="", flush=True)
        return
    for name, line in merge_logs(texts):
        print(f"{name} | {line}", flush=True)


def matching(names: Sequence[str], text: str) -> list[str]:
    """The process of that name, else those whose names contain the text, such as a role.

    >>> matching(["chat-decode-0", "chat-gateway", "chat-prefill-0"], "prefill")
    ['chat-prefill-0']
    """
    return [text] if text in names else [name for name in names if text in name]
