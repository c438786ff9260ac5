"""Standard output whose reader has gone, as in `baton status | head -1`."""

from __future__ import annotations

import contextlib
import os
import select
import sys


def is_output_closed() -> bool:
    """Find out whether standard output is a pipe without a reader."""
    try:
        watched = select.poll()
        watched.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in watched.poll(0))
    except (OSError, ValueError):  # it is no file, or closed
        return False


def discard_output() -> None:
    """Send what is still in the buffer of standard output nowhere, so that Python does not complain at the end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
