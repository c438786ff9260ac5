"""HTTP listeners that a stranger can reach: how many connections, for how long, what is said when there are too many.

Owns accepting, the limits of connections and of descriptors.
Never looks at a request.
Called by the gateway, the workers and the operator for their ports.
"""
