"""Models that a command brings onto this machine: what was asked for, the pinned name, the cache, how far it is.

Owns the user's cache of models. Never downloads by itself: `baton_model_fetch` does, as on a cluster, and checks.
Called by `baton up` and `baton batch` before any process starts.
"""
