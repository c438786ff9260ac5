"""Waits after failures of the API server."""

from __future__ import annotations

import random

from baton_operator.kube.kube_api import KubeError, TooManyRequests

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0


class Backoff:
    """Waits that double from failure to failure, up to LONGEST_WAIT_S, each with some randomness."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._wait_s = rng, FIRST_WAIT_S

    def after(self, error: KubeError | None = None) -> float:
        """Seconds to wait now, at least as long as the server asks for."""
        wait_s = self._wait_s * self._rng.uniform(0.7, 1.3)
        self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        return max(wait_s, error.retry_after_s) if isinstance(error, TooManyRequests) else wait_s

    def reset(self) -> None:
        """Begin with the shortest wait again, after a success."""
        self._wait_s = FIRST_WAIT_S
