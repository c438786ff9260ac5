"""Sums and exchanges between the ranks of one worker, each of which computes a share of every layer.

Owns the order of summation, which makes every rank's bits the same.
Never knows layers or plans: it sees tensors.
Called by the model's layers and the draw.
"""
