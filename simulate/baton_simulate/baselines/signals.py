"""Signals that baseline rules read, the pools' bounds that they obey, and the windows that several rules share."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from baton_wire.messages.values import Role


@dataclass(frozen=True, slots=True)
class PoolSignals:
    """One pool at one moment, averaged over its routable workers where it says so."""

    workers: int
    """Started and not asked to stop."""
    ready: int
    running: float
    """Requests in a step or a batch, of the pool."""
    queued: float
    """Requests that wait for this pool, of the pool."""
    kv_use: float
    """Mean share of the KV pool in use."""
    kv_tokens: float
    """The share of the KV pool in use."""
    queued_tokens: float


@dataclass(frozen=True, slots=True)
class Signals:
    """None instead of this means that metrics are lost."""

    prefill: PoolSignals
    decode: PoolSignals
    arrivals_per_s: float
    """Since the last time."""
    mean_prompt: float
    mean_uncached: float
    mean_output: float
    """Means over the last minute; 0 without requests."""

    def of(self, role: Role) -> PoolSignals:
        return self.prefill if role is Role.PREFILL else self.decode


Sizes = dict[Role, int]


class Policy(Protocol):
    """A rule with its own state; asked every `interval_s`."""

    interval_s: float

    def decide(self, signals: Signals | None, now: float) -> Sizes | None:
        """Workers per pool, or None for no change."""
        ...


@dataclass(slots=True)
class Window:
    """Samples of the last `seconds`."""

    seconds: float
    samples: deque[tuple[float, float]]

    def add(self, now: float, value: float) -> None:
        self.samples.append((now, value))
        while self.samples and now - self.samples[0][0] >= self.seconds:
            self.samples.popleft()

    def mean(self) -> float:
        return sum(value for _, value in self.samples) / max(1, len(self.samples))

    def most(self) -> float:
        return max((value for _, value in self.samples), default=0.0)


def window(seconds: float) -> Window:
    return Window(seconds, deque())
