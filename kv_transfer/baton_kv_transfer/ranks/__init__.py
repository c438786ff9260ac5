"""Hand-overs between workers of several ranks: who sends which heads to whom, and one outcome for all ranks.

Owns the machines around one prefill or decode machine per rank.
Never runs a model: no runner of several ranks exists yet.
Called by tests and the simulation until then.
"""
