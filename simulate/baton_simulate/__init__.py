"""The simulator behind `baton simulate`: loads replayed against the twin under a scaling policy.

Owns traces, synthetic loads, the replay, policies by name and the peers' rules as baselines.
Never runs in the operator: a tool for people and benchmarks.
Called by `baton simulate` and the sizing benchmarks.
"""
