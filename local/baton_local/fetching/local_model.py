"""From a manifest or a model argument to a deployment whose model is on this machine; every refusal is raised here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import parse_source
from baton_control.worker_specs import Device
from baton_engine.model.servable import servable_model
from baton_local.errors import StartError
from baton_local.fetching.default_deployment import (
    NO_OPTIONS,
    DefaultOptions,
    context_tokens,
    default_deployment,
    detect_tasks,
)
from baton_local.fetching.download import download_model, pin_revision
from baton_local.fetching.model_argument import HubName, parse_model_argument, served_name
from baton_local.fetching.model_cache import ModelCache
from baton_local.fleet.host import model_flag
from baton_model_fetch.cache_volume import ModelFolder
from baton_wire.models.errors import ModelError
from baton_wire.suggestions import suggestion
from baton_worker.building.memory_limit import free_bytes


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """A model that the command line names, without a manifest."""

    text: str
    served_name: str | None = None
    max_context_tokens: int | None = None
    is_fresh: bool = False
    """Resolve a branch or tag of the hub again."""
    pools: DefaultOptions = NO_OPTIONS


@dataclass(frozen=True, slots=True)
class LocalDeployment:
    """A deployment whose model is on this machine."""

    deployment: LLMDeployment
    argument: str
    """Value of a worker's --model flag."""
    cached: ModelFolder | None
    """Folder in the cache, to be held while it is used; None: the model is the user's own."""


def deployment_from_manifest(
    deployment: LLMDeployment,
    manifest: Path,
    volumes: Mapping[str, Path],
    cache: ModelCache,
    environment: Mapping[str, str],
) -> LocalDeployment:
    """A manifest's deployment, its model downloaded if it is remote. Raises LocalError, UnsupportedError."""
    source = deployment.spec.model.source
    if not parse_source(source).is_remote:
        return LocalDeployment(deployment, model_flag(deployment, manifest, volumes), None)
    folder = download_model(source, cache, environment)
    return LocalDeployment(deployment, str(folder.model), folder)


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model's folder on this machine, with its names."""

    folder: Path
    source: str
    served_name: str
    cached: ModelFolder | None


def fetch_local_model(text: str, cache: ModelCache, environment: Mapping[str, str], is_fresh: bool) -> LocalModel:
    """The model that a command line names, downloaded if it is remote. Raises LocalError."""
    model = parse_model_argument(text)
    if isinstance(model, Path):
        directory = model.expanduser().resolve()
        if not directory.is_dir():
            raise StartError(_why_no_folder(text, directory))
        return LocalModel(directory, f"file://{directory}", served_name(model), None)
    source = pin_revision(model, cache, environment, is_fresh) if isinstance(model, HubName) else text
    folder = download_model(source, cache, environment)
    return LocalModel(folder.model, source, served_name(model), folder)


def _why_no_folder(text: str, path: Path) -> str:
    """Why a path is no model's folder, with what to type in its place."""
    if path.suffix in (".yaml", ".yml"):
        return f"{text}: a manifest is given with -f: `baton up -f {text}`"
    if path.is_file() and path.suffix == ".gguf":
        return (
            f"{text}: GGUF is not read; serve the model's original folder or repository in safetensors, "
            "and make it small with `baton quantise --format int4`"
        )
    if path.is_file():
        has_model = (path.parent / "config.json").is_file()
        meant = f": did you mean {path.parent}?" if has_model else ""
        return f"{text}: is a file; a model is a folder with config.json, safetensors and tokenizer{meant}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):
        return f"{text}: no such folder; a model of the hub is hf://{text}"
    nearby = [entry.name for entry in path.parent.iterdir() if entry.is_dir()] if path.parent.is_dir() else []
    return f"{text}: no such folder{suggestion(path.name, nearby)}; a model of the hub is hf://ORG/NAME"


def deployment_from_source(
    request: SourceRequest, cache: ModelCache, environment: Mapping[str, str], device: Device
) -> LocalDeployment:
    """A deployment of one model with the defaults. Raises LocalError, ManifestError."""
    model = fetch_local_model(request.text, cache, environment, request.is_fresh)
    try:
        config = servable_model(model.folder)
        free = free_bytes(device) if device is Device.CPU else None
        context = context_tokens(config, request.max_context_tokens, free)
    except ModelError as error:
        raise StartError(f"{request.text} cannot be served: {error}") from error
    name = request.served_name or model.served_name
    is_on_gpu = device is Device.CUDA
    deployment = default_deployment(
        model.source, name, context, is_on_gpu=is_on_gpu, options=request.pools, tasks=detect_tasks(config, name)
    )
    return LocalDeployment(deployment, str(model.folder), model.cached)
