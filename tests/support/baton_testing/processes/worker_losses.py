"""Workers of a deployment that die or leave at any time, one after another, and are replaced."""

from __future__ import annotations

import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from baton_testing.processes.deployment import Deployment

LOSSES = (("decode", signal.SIGKILL), ("prefill", signal.SIGKILL), ("decode", signal.SIGTERM))
LEAVES_S = 120.0


class WorkerLosses:
    """A context in which a thread kills or drains a worker and replaces it, repeatedly."""

    def __init__(self, deployment: Deployment, pause_s: float, dice: random.Random) -> None:
        self._deployment = deployment
        self._pause_s = pause_s
        self._dice = dice
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.count = 0

    def __enter__(self) -> Self:
        self._losing = self._pool.submit(self._lose)
        return self

    def __exit__(self, *_: object) -> None:
        """End with all workers running. Raises NotReadyError if one could not be replaced."""
        self._is_over.set()
        self._pool.shutdown()
        self._losing.result()

    def _lose(self) -> None:
        while not self._is_over.wait(self._pause_s):
            role, loss = LOSSES[self.count % len(LOSSES)]
            victim = self._dice.choice(self._deployment.of_role(role))
            victim.child.send(loss)
            victim.child.wait(LEAVES_S)
            self._deployment.replace(victim)
            self.count += 1
