"""A worker's reports about itself: metrics, step timings and snapshots.

Owns the form of the reports.
Never changes what the worker does.
Called by `serving`.
"""
