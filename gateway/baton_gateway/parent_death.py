"""A process that must not outlive its parent: the kernel kills it when the parent dies (Linux).

`baton_local.fleet.parent_death_signal` does the same for programs of any kind, before they start. It is a script that
imports nothing of Baton, so the few lines stand in both.
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_VARIABLE = "BATON_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def die_with_parent(death_signal: signal.Signals = signal.SIGKILL) -> None:
    """Tie this process to the parent named by BATON_PARENT_PID, if there is one: `death_signal` is sent when the parent
    dies. Exit at once if it is dead already.
    """
    wanted = os.environ.pop(PARENT_VARIABLE, "")
    if not wanted.isdigit():
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != int(wanted):
        raise SystemExit(1)
