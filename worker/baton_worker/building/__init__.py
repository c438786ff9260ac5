"""Builds a worker from its configuration: model, bundle, KV pool, runner, scheduler; or a paced one without a model.

Owns the arithmetic of memory and the order of a start.
Never serves.
Called by `serving` before the worker is ready.
"""
