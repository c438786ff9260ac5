"""Brings a model's files from hf://, s3:// or oci:// into a cache volume: pinned, verified, all or nothing.

`python -m baton_worker.fetch`, run by a Job that alone has the credentials and the way out. Needs no torch.
"""
