"""Decisions of mode SLO: demand, forecast, capacity, flips, budget, and the sizes that follow from them.

Owns every rule that changes the size of a pool.
Never starts or stops a worker, never reads a clock.
Called by `slo_sizing`.
"""
