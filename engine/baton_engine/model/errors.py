"""Errors of loading a model, below those of reading its config (`baton_wire.models.errors`, which draws the tree)."""

from __future__ import annotations

from baton_wire.models.errors import ModelError


class WeightsError(ModelError):
    """A weight file or a tensor in it; the message names it."""
