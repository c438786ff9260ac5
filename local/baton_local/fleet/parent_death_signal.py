"""Starts one program that the kernel kills when the process that started it dies.

Run as a script by `processes` (`python -I -S parent_death_signal.py PARENT_PID PROGRAM ARG…`): nothing of Baton is
imported. It sets the parent-death signal, makes sure that the parent still lives, and becomes the program. The signal
covers the program alone; the orphan guard kills the processes that the program starts.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    parent, program = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        print(f"cannot be tied to its parent: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
        return 1
    if os.getppid() != parent:
        return 1  # the parent died before the signal was set
    os.execv(program[0], program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
