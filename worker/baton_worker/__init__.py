"""The process shell that both workers share: configuration, building, serving, reporting.

Owns the worker's process, threads and HTTP pages.
Never holds what only one role does: that is in `baton_prefill_worker` and `baton_decode_worker`.
Called by the two worker packages.
"""
