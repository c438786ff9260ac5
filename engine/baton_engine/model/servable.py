"""What can be served: the one question about a model's files, asked before anything starts. No torch here.

`baton up` and `baton plan` ask it; a worker finds the same when it loads. The answer needs no weights: config.json, the
length that is asked for, and that the weight files are there.
"""

from __future__ import annotations

from pathlib import Path

from baton_engine.model.checkpoint_files import find_checkpoint
from baton_engine.model.config_fields import read_json_object
from baton_engine.model.model_config import ModelConfig, parse_config, read_config

CONFIG = "config.json"


def servable_config(config_path: Path) -> ModelConfig:
    """The model that a config.json describes. Raises ModelConfigError: field, value, what is allowed."""
    return parse_config(read_json_object(config_path))


def servable_model(directory: Path) -> ModelConfig:
    """The model of a directory whose weight files are there by name. Raises ModelError."""
    config = read_config(directory)
    find_checkpoint(directory)
    return config
