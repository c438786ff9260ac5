"""A tiny process that outlives a killed `baton up` just long enough to kill everything that it had started.

Run as a script (`python -I -S orphan_guard.py PGID…`, with the groups that already run). It reads process groups from
standard input, `+PGID` when one starts and `-PGID` when it is gone. End of input means that `baton up` ended, perhaps
by SIGKILL. Then it kills every group that is left, grandchildren included. It ignores signals to the terminal's
foreground.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

ROUNDS = 5
ROUND_S = 0.05
"""A group is killed several times: a member may be forking while its group is killed for the first time."""


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    groups = {int(argument) for argument in sys.argv[1:]}
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    for _ in range(ROUNDS if groups else 0):
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        time.sleep(ROUND_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
