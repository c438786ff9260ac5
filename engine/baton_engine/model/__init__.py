"""A model and its loading: configuration, parameters, weights, the decoder and its layers.

Owns the reading of checkpoints and the forward pass.
Never knows requests: it sees rows, positions and block tables.
Called by the runner, and by the worker that builds it.
"""
