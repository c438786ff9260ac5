"""The operator: keeps what runs on a cluster equal to what LLMDeployments ask for.

Owns all that is Kubernetes: the client and its caches, objects, schemas, reconcile passes and status.
Never decides what should run (that is `baton_control`) and handles no tensors.
Called as a process: `python -m baton_operator`.
"""
