"""Models and accelerators as the command line names them: a known name, or a model's folder."""

from __future__ import annotations

from pathlib import Path

from baton_control.sizing.inputs.model_shape import KNOWN_SHAPES, ModelShape, shape_from_config
from baton_engine.model.model_directory import read_json_object
from baton_engine.model.servable import CONFIG, servable_config, servable_model
from baton_local.errors import StartError
from baton_wire.models.errors import ModelError
from baton_wire.rules.hardware import ACCELERATORS, Accelerator

MODEL = "MODEL"
"""The argument of the commands that estimate."""


def shape_named(name: str, argument: str = MODEL) -> ModelShape:
    """The shape of a known model, or of the config.json in a folder; weights in the folder are checked too. `argument`:
    the one that names it, for errors. Raises StartError, ManifestError."""
    if name in KNOWN_SHAPES:
        return KNOWN_SHAPES[name]
    path = Path(name) / CONFIG
    if not path.is_file():
        known = ", ".join(KNOWN_SHAPES)
        hint = f": an estimate downloads nothing, so get its {CONFIG} first" if "://" in name else ""
        raise StartError(f"{argument}: {name} is neither one of {known} nor a folder with {CONFIG}{hint}")
    try:
        if any(path.parent.glob("*.safetensors")):
            servable_model(path.parent)
        else:
            servable_config(path)
        config = read_json_object(path)
    except ModelError as error:
        raise StartError(f"{argument}: {name} cannot be served: {error}") from error
    return shape_from_config(Path(name).resolve().name, config)


def accelerator_named(name: str) -> Accelerator:
    """The accelerator with a name. Raises StartError, which lists the known ones."""
    if name not in ACCELERATORS:
        raise StartError(f"--accelerator: {name} is not allowed: one of {', '.join(ACCELERATORS)}")
    return ACCELERATORS[name]
