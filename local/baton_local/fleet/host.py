"""The model, devices and port that this machine offers a deployment, or the field that it cannot honour."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from baton_control.errors import ManifestError, UnsupportedError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import Scheme, parse_source
from baton_control.spec.served_model import ModelTask
from baton_control.worker_specs import Device, pool_spec
from baton_engine.model.servable import CONFIG, servable_config, servable_model
from baton_local.errors import StartError
from baton_local.fleet.degree_check import degree_problems
from baton_local.fleet.port_holder import deployment_at
from baton_wire.listening.sockets import bind
from baton_wire.messages.values import POOL_ROLES, Role
from baton_wire.models.errors import ModelError
from baton_worker.building.bundle_files import read_bundle
from baton_worker.building.tasks import encoding_limits
from baton_worker.config import Task
from baton_worker.errors import ConfigError

GPU_LIST = Path("/proc/driver/nvidia/gpus")
SOURCE_FIELD = "spec.model.source"
CONTEXT_FIELD = "spec.model.maxContextTokens"
TASKS_FIELD = "spec.model.tasks"
RANDOM = f"{Scheme.RANDOM}://"


def model_flag(deployment: LLMDeployment, manifest: Path, volumes: Mapping[str, Path]) -> str:
    """Value of a worker's --model flag: the model's directory, or the shape of a random one. Raises as
    `model_directory`."""
    source = parse_source(deployment.spec.model.source)
    if source.scheme is not Scheme.RANDOM:
        return str(model_directory(deployment, manifest, volumes))
    path = (manifest.resolve().parent / str(source.path)).resolve()
    if not path.is_file():
        raise UnsupportedError(SOURCE_FIELD, f"{path} is not a file")
    return f"{source.scheme}://{path}"


def model_directory(deployment: LLMDeployment, manifest: Path, volumes: Mapping[str, Path]) -> Path:
    """The model's directory on this machine. Raises UnsupportedError naming `spec.model.source`.

    A `file://` path is relative to the manifest's directory; a `pvc://` claim needs a directory in `volumes`.
    """
    source = parse_source(deployment.spec.model.source)
    if source.scheme is Scheme.FILE:
        path = manifest.resolve().parent / str(source.path)
    elif source.scheme is Scheme.PVC:
        path = _in_volume(str(source.place), str(source.path), volumes)
    else:
        fetched_by = "`baton up`, `baton batch` and on a cluster"
        message = f"{source.scheme}:// is fetched by {fetched_by}: use file:// or pvc:// with --volume here"
        raise UnsupportedError(SOURCE_FIELD, message)
    if not (path / "config.json").is_file():
        raise UnsupportedError(SOURCE_FIELD, f"{path} is not a directory with a config.json")
    return path.resolve()


def check_model(deployment: LLMDeployment, model: str, is_emulated: bool) -> None:
    """Check that workers can serve the model, before any process starts. `model`: the value of their --model flag.

    An emulated model is never computed, so it needs a tokenizer only. Raises UnsupportedError or ManifestError, which
    name the field of the manifest.
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
    tasks = deployment.spec.model.tasks
    try:
        encoding_limits(config, () if tasks == (ModelTask.GENERATE,) else tuple(Task(task.lower()) for task in tasks))
    except ConfigError as error:
        raise UnsupportedError(TASKS_FIELD, str(error).removeprefix("argument --tasks: ")) from error
    if problems := degree_problems(deployment, config):
        raise ManifestError(problems)
    if deployment.spec.model.generates and not config.generates:
        raise UnsupportedError(TASKS_FIELD, "Generate: the model has no head for tokens; allowed: Embed or Rerank")
    try:
        config.context_within(deployment.spec.model.max_context_tokens)
    except ModelError as error:
        raise UnsupportedError(CONTEXT_FIELD, str(error).removeprefix("max_context_tokens: ")) from error


def gpu_ids(environment: Mapping[str, str], gpu_list: Path = GPU_LIST) -> tuple[str, ...]:
    """The NVIDIA GPUs that a process started from here may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not gpu_list.is_dir():
        return ()
    if visible is not None:
        named = (part.strip() for part in visible.split(","))
        return tuple(dict.fromkeys(part for part in named if part not in ("", "-1")))
    return tuple(str(index) for index in range(len(list(gpu_list.iterdir()))))


def devices(deployment: LLMDeployment, asked: Device | None, num_gpus: int) -> dict[Role, Device]:
    """The device of each pool. Raises UnsupportedError or StartError for a GPU that this machine does not have."""
    if asked is Device.CUDA and not num_gpus:
        raise StartError("--device cuda: this machine has no NVIDIA GPU (no driver, or no GPU is visible)")
    chosen = {}
    for role in POOL_ROLES:
        accelerator = pool_spec(deployment, role).accelerator
        if asked is not None or accelerator is None:
            chosen[role] = asked or Device.CPU
            continue
        if not num_gpus or accelerator.resource != "nvidia.com/gpu":
            device = accelerator.resource or "resource claims"
            message = f"this machine has no {device}: start with --device cpu, or omit the field"
            raise UnsupportedError(f"spec.{role}.accelerator", message)
        chosen[role] = Device.CUDA
    return chosen


def reserve_port(host: str, asked: int) -> socket.socket:
    """A socket that reserves a port, any free one for 0, while it is open.

    It does not listen, so a gateway can bind the port, and bind it again after it was killed: that needs SO_REUSEADDR
    on both sides. Processes that ask for any free port get another one. Raises StartError.
    """
    try:
        socket.getaddrinfo(host, asked, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror as error:
        raise StartError(f"--host {host}: must be an IP address of this machine") from error
    try:
        return bind(host, asked)
    except OSError as error:
        message = f"--port {asked}: {host}:{asked} cannot be used: {os.strerror(error.errno or 0)}"
        if error.errno == errno.EADDRINUSE and (deployment := deployment_at(asked)) is not None:
            message += f" by {deployment} (`baton down --name {deployment}` stops it)"
        raise StartError(f"{message}; choose another with --port, 0 for any") from error


def _in_volume(claim: str, path: str, volumes: Mapping[str, Path]) -> Path:
    if claim not in volumes:
        message = f"needs --volume {claim}=PATH, the directory that replaces the claim {claim} on this machine"
        raise UnsupportedError(SOURCE_FIELD, message)
    root = volumes[claim].resolve()
    if not root.is_dir():
        raise StartError(f"--volume {claim}={volumes[claim]}: not a directory")
    target = (root / path).resolve()
    if not target.is_relative_to(root):
        raise UnsupportedError(SOURCE_FIELD, f"{path} leads out of the volume {claim}")
    return root / path
