"""Errors of what a model's files say. All are the operator's to fix: the message names the field and what is allowed.

ModelError
├── ModelConfigError    config.json is missing, malformed, or asks for something that the engine does not compute
└── WeightsError        of the engine: weight files are missing, refused, truncated, or do not match the config
"""

from __future__ import annotations


class ModelError(Exception):
    """Base of every error about a model's files."""


class ModelConfigError(ModelError):
    """A field of the model's config; the message starts with its name."""
