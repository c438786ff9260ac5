"""Signals that ask a process to drain and stop, and signals that it ignores.

SIGTERM and SIGINT are sent on purpose. SIGHUP says that the terminal is gone: a session that ends sends it several
times, and a service manager sends it together with SIGTERM. So it starts a drain and never hurries one. A process that
was started to survive its terminal (`nohup`) ignores it. SIGQUIT is left alone: it ends a process at once, with a core.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

DELIBERATE = (signal.SIGTERM, signal.SIGINT)
WITHOUT_MEANING = (signal.SIGUSR1, signal.SIGUSR2)
"""Some programs reopen their logs at these. Left alone they would end a process and its requests."""


def handle_stop_signals(
    loop: asyncio.AbstractEventLoop, stop: Callable[[], None], is_stopping: Callable[[], bool]
) -> None:
    """Call `stop` for each SIGTERM and SIGINT, and for a SIGHUP when nothing stops the process yet.

    The first SIGTERM or SIGINT after such a SIGHUP means the same stop, and is not passed on. Call it again where
    another library has set its own handlers.
    """
    is_hung_up = False

    def ask() -> None:
        nonlocal is_hung_up
        if is_hung_up and is_stopping():
            is_hung_up = False
            return
        stop()

    def hang_up() -> None:
        nonlocal is_hung_up
        if not is_stopping():
            is_hung_up = True
            stop()

    for number in DELIBERATE:
        loop.add_signal_handler(number, ask)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)
    for number in WITHOUT_MEANING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.SIG_IGN)
