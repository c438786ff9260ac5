"""Die with the parent: a worker or gateway that was started by `baton up` must not outlive it, kill -9 included
(Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_VARIABLE = "BATON_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """Ask the kernel for SIGKILL when the parent dies, if `BATON_PARENT_PID` is set; exit if it is already gone.

    The signal follows the *thread* that started us, so the parent must start children from a thread that lives as
    long as it does.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if str(os.getppid()) != parent:
        raise SystemExit("the parent process is gone")
