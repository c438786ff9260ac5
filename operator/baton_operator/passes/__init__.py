"""One reconcile pass, from what the caches know to what is applied and told.

Owns the order of a pass and every write that it makes.
Never waits for workers: a pass sees, does one safe step and ends.
Called by the runtime, once per key that the queue hands out.
"""
