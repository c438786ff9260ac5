"""Tenants of this process: who asks, what a tenant may have, and what is left of its limits.

Owns the table of tenants by key and the meters of their limits. Never queues, routes or counts a request's tokens: the
HTTP API asks who a request is from and charges it, and `requests` keeps weights and turns.
"""
