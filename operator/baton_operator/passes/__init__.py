"""One reconcile pass, from the caches to what is applied and reported.

Owns the order of a pass and every write that it makes.
Never waits for workers: a pass reads, takes one safe step and ends.
Called by the runtime, once per key that the queue hands out.
"""
