"""The ways that KV bytes travel, behind one seam: `tcp`, `ucx`, and `memory` as the deterministic twin.

Owns connections for bytes, the choice that a pair agrees on, and the measured bandwidth of the pair's way.
Never knows requests or blocks.
Called by the drivers of both sides.
"""
