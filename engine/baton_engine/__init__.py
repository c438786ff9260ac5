"""The engine: model, paged KV blocks, prefix cache, schedulers, sampling.

Knows token ids, not text and not networks.
"""
