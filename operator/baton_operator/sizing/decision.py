"""What is known when a pool is sized, and what was decided. Values only; the rule stands in `decide`."""

from __future__ import annotations

from dataclasses import dataclass

from baton_operator.names import Role


@dataclass(frozen=True, slots=True)
class Known:
    """A measured value that is not zero, or a zero that says nothing about demand."""

    value: float


@dataclass(frozen=True, slots=True)
class ProvenZero:
    """Measured, complete and zero: there is no demand."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Not measured, stale or incomplete. Never the same as zero: nothing is scaled down on it."""

    why: str


Reading = Known | ProvenZero | Unknown


@dataclass(frozen=True, slots=True)
class Readings:
    """What was measured about a deployment's demand."""

    arrivals_per_s: Reading


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool's bounds and size at the time of a decision."""

    minimum: int
    maximum: int
    workers: int


@dataclass(frozen=True, slots=True)
class Decision:
    """How many workers each pool should have, and why, in words that a person on call can use."""

    workers: dict[Role, int]
    holds: bool
    """No demand was weighed: the numbers are not an answer to the load."""
    reason: str
