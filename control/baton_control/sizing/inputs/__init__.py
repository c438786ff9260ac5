"""The inputs of a sizing decision: observations, memory, the spec, the workload, and the model of one worker.

Owns the values and where they come from.
Never decides a size.
Called by `simulator` and `decision`.
"""
