"""KV bytes over UCX, through NIXL: RDMA, NVLink, shared memory or TCP, one-sided.

Owns the only import of the UCX binding, its agents, registered memory and thread.
Never decides what is written where.
Called through the seam of `transports`.
"""
