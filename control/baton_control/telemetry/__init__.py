"""Telemetry of gateways: the server for their links, and a store per deployment that merges their summaries.

Owns the merge of several gateways' summaries into demand and latencies, which are unknown while a gateway is silent.
Never sizes a pool.
Called by the operator's process and by `baton up`.
"""
