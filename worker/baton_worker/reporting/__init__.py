"""What a worker tells of itself: metrics, step timings and snapshots.

Owns the shapes of these reports.
Never changes what the worker does.
Called by `serving`.
"""
