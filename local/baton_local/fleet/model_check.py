"""Whether this deployment's model can be served, asked before any process starts; a worker would say the same later."""

from __future__ import annotations

from pathlib import Path

from baton_control.errors import UnsupportedError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import Scheme
from baton_engine.model.servable import CONFIG, servable_config, servable_model
from baton_local.fleet.host import SOURCE_FIELD
from baton_wire.models.errors import ModelError
from baton_worker.building.bundle_files import read_bundle
from baton_worker.errors import ConfigError

RANDOM = f"{Scheme.RANDOM}://"
CONTEXT_FIELD = "spec.model.maxContextTokens"


def check_model(deployment: LLMDeployment, model: str, is_emulated: bool) -> None:
    """`model` is what a worker is told (`host.model_argument`). An emulated model is never computed, so that only its
    tokenizer has to be there. Raises UnsupportedError naming the field of the manifest.
    """
    is_random = model.startswith(RANDOM)
    folder = Path(model.removeprefix(RANDOM)).parent if is_random else Path(model)
    try:
        read_bundle(folder)
        if is_emulated:
            return
        config = servable_config(Path(model.removeprefix(RANDOM))) if is_random else servable_model(folder)
    except ConfigError as error:
        raise UnsupportedError(SOURCE_FIELD, str(error).removeprefix("model: ")) from error
    except ModelError as error:
        raise UnsupportedError(SOURCE_FIELD, f"{folder}/{CONFIG}: {error}") from error
    try:
        config.context_within(deployment.spec.model.max_context_tokens)
    except ModelError as error:
        raise UnsupportedError(CONTEXT_FIELD, str(error).removeprefix("max_context_tokens: ")) from error
