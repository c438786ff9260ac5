"""Reading several facts at the same time within one deadline."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

Reader = Callable[[], object]


def read_within(readers: Mapping[str, Reader], limit_s: float) -> dict[str, object]:
    """The facts of the readers that answered in time, by name; a reader that was too slow, or failed with OSError or
    ValueError, is missing. Its thread ends with the process: a name server or a driver may never answer."""
    answers: queue.SimpleQueue[tuple[str, object, bool]] = queue.SimpleQueue()

    def read(name: str, reader: Reader) -> None:
        try:
            answers.put((name, reader(), True))
        except (OSError, ValueError):
            answers.put((name, None, False))

    for name, reader in readers.items():
        threading.Thread(target=read, args=(name, reader), name=f"doctor-{name}", daemon=True).start()
    until, facts = time.monotonic() + limit_s, {}
    for _ in readers:
        try:
            name, fact, is_known = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        if is_known:
            facts[name] = fact
    return facts
