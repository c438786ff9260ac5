"""kopf: the handlers and the stream through which Baton's own kinds are watched.

Owns everything that kopf needs to run inside the operator's process.
Never reads or writes a deployment.
Called by the runtime.
"""
