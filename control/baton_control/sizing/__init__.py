"""How many workers each pool should have, and why: demand, forecast, capacity, step times, the decision of mode SLO.

Owns the decision and what it remembers between two decisions.
Never starts or stops a worker, never reads a clock.
Called by the operator's passes, by `baton up` and by `baton simulate`.
"""
