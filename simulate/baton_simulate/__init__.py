"""The replays of `baton simulate`: a load in the simulator of `baton_control`, under a scaling policy.

Owns traces, synthetic loads, the replay, policies by name and the peers' rules as baselines.
Never runs in the operator: a tool for people and benchmarks.
Called by `baton simulate` and the sizing benchmarks.
"""
