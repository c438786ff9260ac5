"""Brings a model's files from hf://, s3:// or oci:// into a cache volume: pinned, verified, all or nothing.

Owns downloads, credentials and the cache's layout on disk.
Never loads a model and never runs in a worker's Pod.
Called as a process of its own: `python -m baton_model_fetch`.
"""
