"""Loads of sessions: what agents send, turn after turn, with prefixes that grow.

The room owns the plan of such a load, its generator, its traces, and the cached tokens that an ideal cache would find.
It sends nothing and knows no server: `baton bench` and the simulator carry the plan out.
"""
