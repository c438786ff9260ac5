"""The linked workers: links, what each said of itself, and which of them take a run.

Owns the links, the snapshot for routing and the choice of workers.
Never reads a client's text.
Called by `requests`.
"""
