"""What the gateway says about itself: metrics, the admin pages, and the link to whoever sizes the pools.

Owns counters, latency sketches and summaries.
Never changes how a request is served.
Called by the server and, to count, by `requests`.
"""
