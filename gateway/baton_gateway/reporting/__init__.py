"""The gateway's reports about itself: metrics, the admin pages, and the link to the process that sizes the pools.

Owns counters, latency sketches and summaries.
Never changes how a request is served.
Called by the server and, to count, by `requests`.
"""
