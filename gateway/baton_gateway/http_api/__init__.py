"""The public HTTP surface: routes, bodies, typed requests, answers, tenants, connections.

Owns what a client may send and what it reads.
Never talks to workers.
Called by the gateway's server; hands typed requests to `requests`.
"""
