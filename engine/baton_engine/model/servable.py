"""Check whether a model can be served, from its files alone, before anything starts. No torch here.

`baton up` and `baton plan` check first; a worker that loads the model comes to the same result. The check reads no
weights: config.json, the context length that is asked for, and the headers of the weight files are enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from baton_engine.model.checkpoint_files import find_checkpoint, what_it_is
from baton_engine.model.model_directory import read_json_object, read_spec
from baton_engine.model.tensor_headers import TensorHeader, check_headers, read_headers, served_headers, without_head
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelError
from baton_wire.models.parsing import parse_spec

CONFIG = "config.json"


def servable_config(config_path: Path) -> DecoderSpec:
    """The model that a config.json describes. Raises ModelConfigError: field, value, what is allowed."""
    return parse_spec(read_json_object(config_path))


def servable_model(directory: Path) -> DecoderSpec:
    """The model of a directory whose weight files have its tensors, by their headers. Raises ModelError."""
    return servable_weights(directory)[0]


def servable_weights(directory: Path) -> tuple[DecoderSpec, Mapping[str, TensorHeader]]:
    """The model of a directory and the headers of its tensors. Raises ModelError."""
    if directory.is_dir() and not (directory / CONFIG).exists():
        raise ModelError(what_it_is(directory))
    config = read_spec(directory)
    headers = served_headers(read_headers(find_checkpoint(directory)), config)
    config = without_head(headers, config)
    check_headers(headers, config)
    return config, headers
