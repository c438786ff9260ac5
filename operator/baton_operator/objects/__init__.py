"""Kubernetes objects as plain data, made by pure functions. Nothing here talks to an API server."""
