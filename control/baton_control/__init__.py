"""The control plane: the specification of a deployment, its names and hashes, worker specs, rollouts, pool sizes.

Owns the decisions about what runs, which a laptop and a cluster share, as functions and machines over plain values.
Never talks to Kubernetes, starts a process or handles a tensor.
Called by the operator's passes, by `baton up` and by the simulator.
"""
