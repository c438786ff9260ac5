"""From what was asked for to a deployment and a model on this machine that can be served: all refusals are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import ModelSource, parse_source
from baton_control.worker_specs import Device
from baton_engine.model.servable import servable_model
from baton_local.errors import StartError
from baton_local.fetching.default_deployment import context_tokens, made_deployment
from baton_local.fetching.download import fetched, pinned
from baton_local.fetching.model_argument import HubName, asked_model, served_name
from baton_local.fetching.model_cache import ModelCache
from baton_local.fleet.host import model_argument
from baton_model_fetch.cache_volume import ModelFolder
from baton_wire.models.errors import ModelError
from baton_worker.building.memory_limit import free_bytes


@dataclass(frozen=True, slots=True)
class AskedSource:
    """A model without a file that describes it."""

    text: str
    served_name: str | None = None
    max_context_tokens: int | None = None
    is_fresh: bool = False
    """Ask the hub again what a name means."""


@dataclass(frozen=True, slots=True)
class ReadyModel:
    deployment: LLMDeployment
    argument: str
    """What a worker is told of the model."""
    cached: ModelFolder | None
    """To be held while it is used; None: the model is the user's own."""


def from_file(
    deployment: LLMDeployment,
    manifest: Path,
    volumes: Mapping[str, Path],
    cache: ModelCache,
    environment: Mapping[str, str],
) -> ReadyModel:
    """The model that a file names, fetched when it lies elsewhere. Raises LocalError, UnsupportedError."""
    source = deployment.spec.model.source
    if not parse_source(source).is_remote:
        return ReadyModel(deployment, model_argument(deployment, manifest, volumes), None)
    folder = fetched(source, cache, environment)
    return ReadyModel(deployment, str(folder.model), folder)


@dataclass(frozen=True, slots=True)
class HereModel:
    """A model's folder on this machine, and what it is called."""

    folder: Path
    source: str
    served_name: str
    cached: ModelFolder | None


def brought(text: str, cache: ModelCache, environment: Mapping[str, str], is_fresh: bool) -> HereModel:
    """The model behind a text, fetched when it lies elsewhere. Raises LocalError."""
    found = asked_model(text)
    if isinstance(found, Path):
        directory = found.expanduser().resolve()
        if not directory.is_dir():
            raise StartError(f"{text}: no such folder; a model of the hub is hf://ORG/NAME")
        return HereModel(directory, f"file://{directory}", served_name(found), None)
    source = _pinned_text(text, found, cache, environment, is_fresh)
    folder = fetched(source, cache, environment)
    return HereModel(folder.model, source, served_name(found), folder)


def from_source(asked: AskedSource, cache: ModelCache, environment: Mapping[str, str], device: Device) -> ReadyModel:
    """A deployment of one model with the defaults. Raises LocalError, ManifestError."""
    here = brought(asked.text, cache, environment, asked.is_fresh)
    try:
        config = servable_model(here.folder)
        free = free_bytes(device) if device is Device.CPU else None
        context = context_tokens(config, asked.max_context_tokens, free)
    except ModelError as error:
        raise StartError(f"{asked.text} cannot be served: {error}") from error
    name = asked.served_name or here.served_name
    deployment = made_deployment(here.source, name, context, is_on_gpu=device is Device.CUDA)
    return ReadyModel(deployment, str(here.folder), here.cached)


def _pinned_text(
    text: str, found: ModelSource | HubName, cache: ModelCache, environment: Mapping[str, str], is_fresh: bool
) -> str:
    return pinned(found, cache, environment, is_fresh) if isinstance(found, HubName) else text
