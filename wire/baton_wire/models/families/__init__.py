"""One file for each family of models: how its config.json is read into a `DecoderSpec`.

Owns the fields of a family, their defaults, and which of their values would be computed wrongly.
Never knows of weights or devices. `model_types` registers the families by `model_type`; `parsing` asks it.
"""
