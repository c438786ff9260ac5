"""The Kubernetes objects of a deployment as plain data, made by pure functions.

Owns what a Pod, a Service, a policy or a claim of a deployment looks like.
Never talks to an API server.
Called by passes.
"""
