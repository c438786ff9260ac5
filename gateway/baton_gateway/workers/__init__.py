"""The linked workers: links, their reported states and loads, limits, and the choice of workers for a run.

Owns the links, the snapshot for routing and the choice of workers.
Never reads a client's text.
Called by `requests`.
"""
