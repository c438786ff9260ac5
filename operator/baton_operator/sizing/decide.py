"""How many workers each pool should have now. Pure: bounds, state and readings in, a decision with its reason out."""

from __future__ import annotations

from collections.abc import Mapping

from baton_operator.names import Role
from baton_operator.sizing.decision import Decision, PoolState, Readings, Unknown


def decide(pools: Mapping[Role, PoolState], readings: Readings) -> Decision:
    """Hold every pool at its minimum, and say so. A pool is never sized from readings that are unknown."""
    arrivals = readings.arrivals_per_s
    known = f"arrivals unknown: {arrivals.why}" if isinstance(arrivals, Unknown) else "arrivals are not weighed yet"
    return Decision({role: pool.minimum for role, pool in pools.items()}, True, f"hold at replicas.min ({known})")
