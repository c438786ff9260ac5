"""The Kubernetes objects of a deployment as plain data, made by pure functions. None of them talks to an API server."""
