"""What gateways told: the listener of their links, and per deployment the store that merges what they say.

Owns the merge of several gateways' reports into demand and latencies, unknown where one is silent.
Never sizes a pool.
Called by the operator's process and by `baton up`.
"""
