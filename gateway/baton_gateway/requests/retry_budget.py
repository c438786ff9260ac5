"""How much retrying all requests of a gateway may do together, so that retries never become a storm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class RetryBudget:
    """A bucket that every request fills by `ratio` and every retry empties by one.

    `floor_per_s` flows in regardless of traffic, so that a quiet gateway can still retry. Retries because a worker went
    away are not taken from it: their number is bounded by the number of requests that the worker had.
    """

    ratio: float = 0.2
    floor_per_s: float = 1.0
    capacity: float = 100.0
    balance: float = 10.0
    filled_s: float | None = None

    def request(self) -> None:
        """A request came in."""
        self.balance = min(self.capacity, self.balance + self.ratio)

    def withdraw(self, now: float) -> bool:
        """May one more retry be made?"""
        if self.filled_s is not None:
            self.balance = min(self.capacity, self.balance + max(0.0, now - self.filled_s) * self.floor_per_s)
        self.filled_s = now
        if self.balance < 1.0:
            return False
        self.balance -= 1.0
        return True
