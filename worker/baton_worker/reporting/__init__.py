"""What a worker tells of itself: metrics, step timings, snapshots and the announce file.

Owns the shapes of these reports.
Never changes what the worker does.
Called by `serving`.
"""
