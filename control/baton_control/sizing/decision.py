"""What is known of a measured number when a pool is sized. Values only; the rule stands in `decide`."""

from __future__ import annotations

from dataclasses import dataclass


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
