"""Check whether a model can be served, from its files alone, before anything starts. No torch here.

`baton up` and `baton plan` check first; a worker that loads the model comes to the same result. The check reads no
weights: config.json, the context length that is asked for, and the names of the weight files are enough.
"""

from __future__ import annotations

from pathlib import Path

from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.model_directory import read_json_object, read_spec
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.parsing import parse_spec

CONFIG = "config.json"


def servable_config(config_path: Path) -> DecoderSpec:
    """The model that a config.json describes. Raises ModelConfigError: field, value, what is allowed."""
    return parse_spec(read_json_object(config_path))


def servable_model(directory: Path) -> DecoderSpec:
    """The model of a directory that has weight files by name. Raises ModelError."""
    config = read_spec(directory)
    find_checkpoint(directory)
    return config
