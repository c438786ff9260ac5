"""The life of a client's request: admitted, prepared, routed, run, retried, migrated, ended.

Owns the machine of one request and the shell that carries out what it decides.
Never parses HTTP and never opens a link.
Called by the routes of `http_api`.
"""
