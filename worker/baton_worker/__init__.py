"""The process shell that all workers share: configuration, building, serving, reporting.

Owns the worker's process, threads and HTTP pages.
Never holds code of one role: that is in `baton_prefill_worker`, `baton_decode_worker` and `baton_flexible_worker`.
Called by these packages.
"""
