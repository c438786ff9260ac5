"""A token bucket: an amount per minute, of which a full minute's may be spent at once. Pure.

In any span of time at most `capacity + rate * span` is spent. An amount that is larger than the bucket is let through
when the bucket is full, and so is what turned out larger than expected: the level is negative until that is repaid. So
the sum over a long time is exact however requests are sized.
"""

from __future__ import annotations

import msgspec

MINUTE_S = 60.0
SLACK = 1e-9
"""Relative error of sums of floats: a level this much below an amount holds it."""


class TokenBucket(msgspec.Struct, gc=False):
    """The bucket of `share` of a limit; the other shares are those of other processes."""

    per_minute: float
    share: float
    level: float
    filled_s: float

    @classmethod
    def full(cls, per_minute: float, share: float, now: float) -> TokenBucket:
        """A bucket from which nothing was taken."""
        return cls(per_minute, share, per_minute * share, now)

    @property
    def capacity(self) -> float:
        return self.per_minute * self.share

    def refill(self, now: float) -> None:
        """Add what has come since the last call. A clock that steps back adds nothing."""
        elapsed_s = now - self.filled_s
        self.filled_s = now
        capacity = self.per_minute * self.share
        if self.level < capacity and elapsed_s > 0:
            self.level = min(capacity, self.level + elapsed_s * capacity / MINUTE_S)

    def is_full(self, now: float) -> bool:
        """Return whether the bucket would be full after `refill`."""
        capacity = self.per_minute * self.share
        return self.level + max(0.0, now - self.filled_s) * capacity / MINUTE_S >= capacity

    def holds(self, amount: float) -> bool:
        """Return whether the amount may be taken, after `refill`."""
        needed = min(amount, self.capacity)
        return self.capacity > 0 and self.level >= needed - SLACK * self.capacity

    def take(self, amount: float) -> None:
        """Take an amount, or give one back where it is negative."""
        self.level = min(self.capacity, self.level - amount)

    def wait_s(self, amount: float) -> float:
        """Seconds until the bucket holds the amount, if nothing else is taken."""
        missing = min(amount, self.capacity) - self.level
        rate = self.capacity / MINUTE_S
        return 0.0 if missing <= 0 else missing / rate if rate > 0 else MINUTE_S

    def full_after_s(self) -> float:
        """Seconds until the bucket is full, if nothing is taken."""
        return self.wait_s(self.capacity)

    def change_limit(self, per_minute: float) -> None:
        """Apply an edited limit: what was spent of the former one stays spent."""
        self.level += (per_minute - self.per_minute) * self.share
        self.per_minute = per_minute

    def change_share(self, share: float, moved: float) -> None:
        """Apply another share of the limit, and the tokens that come from other processes (negative: go to them)."""
        self.share = share
        self.level = min(self.capacity, self.level + moved)
