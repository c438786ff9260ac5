"""The description of a model, read from its config.json: layers, names and shapes of its tensors, how its weights are
stored.

Owns the registry of families, and the refusal of everything that would be computed wrongly.
Never reads files or weights, and computes nothing: no torch here.
Called by the engine that loads a model, by checks of whether it can be served, and by the operator's sizing.
"""
