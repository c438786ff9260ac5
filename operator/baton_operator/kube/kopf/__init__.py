"""kopf: the handlers and the streams through which Baton's own kinds are watched.

Owns everything that kopf needs to run inside the operator's process, and what its version makes necessary
(docs/kopf.md).
Never reads or writes a deployment.
Called by the process's `__main__` alone.
"""
