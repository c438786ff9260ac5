"""What a model is, as its config.json says: layers, names and shapes of its tensors, how its weights are stored.

Owns the registry of families, and the refusal of everything that would be computed wrongly.
Never reads files or weights, and computes nothing: no torch here.
Called by the engine that loads a model, by what asks whether it can be served, and by the operator's sizing.
"""
