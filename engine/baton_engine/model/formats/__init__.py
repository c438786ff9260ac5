"""Weights of quantised checkpoints: from the tensors that a `WeightFormat` names to codes, scales and zero points.

Owns what the stored bits mean. Never multiplies and knows no device's own layout. `assembly` asks for the weights.
"""
