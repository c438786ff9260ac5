"""Transports for KV bytes, behind one seam: `tcp` and `ucx`. Tests have a third, in memory and deterministic.

Owns connections for bytes, the choice that a pair agrees on, and the measured bandwidth of each link.
Never knows requests or blocks.
Called by the drivers of both sides.
"""
