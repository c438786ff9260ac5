"""Models on this machine: parses the model argument, pins its revision, downloads it into the user's cache.

Owns the user's model cache. The download itself is `baton_model_fetch`, as on a cluster, which verifies every file.
Called by `baton up`, `baton batch` and `baton quality` before any process starts.
"""
