"""Tensor parallelism: the part of a model that each rank of a worker holds. Plain values: no torch here."""
