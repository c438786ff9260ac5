"""What this machine offers a deployment: its model on disk and its devices, or which field cannot be met."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from baton_control.errors import UnsupportedError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import Scheme, parse_source
from baton_control.worker_specs import Device, pool_spec
from baton_local.errors import StartError
from baton_wire.listening.sockets import bind
from baton_wire.messages.values import POOL_ROLES, Role

GPU_LIST = Path("/proc/driver/nvidia/gpus")
SOURCE_FIELD = "spec.model.source"


def model_argument(deployment: LLMDeployment, manifest: Path, volumes: Mapping[str, Path]) -> str:
    """What a worker is told of the model: its directory, or the shape of a random one. Raises as `model_directory`."""
    source = parse_source(deployment.spec.model.source)
    if source.scheme is not Scheme.RANDOM:
        return str(model_directory(deployment, manifest, volumes))
    path = (manifest.resolve().parent / str(source.path)).resolve()
    if not path.is_file():
        raise UnsupportedError(SOURCE_FIELD, f"{path} is not a file")
    return f"{source.scheme}://{path}"


def model_directory(deployment: LLMDeployment, manifest: Path, volumes: Mapping[str, Path]) -> Path:
    """Where the model lies here. Raises UnsupportedError naming `spec.model.source`.

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


def gpu_ids(environment: Mapping[str, str], gpu_list: Path = GPU_LIST) -> tuple[str, ...]:
    """The NVIDIA GPUs that a process started from here may use, as CUDA_VISIBLE_DEVICES names them."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if not gpu_list.is_dir():
        return ()
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    return tuple(str(index) for index in range(len(list(gpu_list.iterdir()))))


def devices(deployment: LLMDeployment, asked: Device | None, num_gpus: int) -> dict[Role, Device]:
    """What each pool computes on. Raises UnsupportedError or StartError when that needs a GPU that is not there."""
    if asked is Device.CUDA and not num_gpus:
        raise StartError("--device cuda: this machine has no NVIDIA GPU (no driver, or none is visible)")
    chosen = {}
    for role in POOL_ROLES:
        accelerator = pool_spec(deployment, role).accelerator
        if asked is not None or accelerator is None:
            chosen[role] = asked or Device.CPU
            continue
        if not num_gpus or accelerator.resource != "nvidia.com/gpu":
            message = f"this machine has no {accelerator.resource}: start with --device cpu, or leave the field out"
            raise UnsupportedError(f"spec.{role}.accelerator", message)
        chosen[role] = Device.CUDA
    return chosen


def held_port(host: str, asked: int) -> socket.socket:
    """A socket that keeps the asked port, or any when 0, from being given to others while it is open.

    It does not listen, so a gateway can take the port, and take it again after it was killed: that needs SO_REUSEADDR
    on both sides. Who asks for any port gets another one. Raises StartError.
    """
    try:
        socket.getaddrinfo(host, asked, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror as error:
        raise StartError(f"--host {host}: must be an IP address of this machine") from error
    try:
        return bind(host, asked)
    except OSError as error:
        message = f"--port {asked}: {host}:{asked} cannot be used: {os.strerror(error.errno or 0)}"
        raise StartError(f"{message}; choose another with --port, 0 for any") from error


def _in_volume(claim: str, path: str, volumes: Mapping[str, Path]) -> Path:
    if claim not in volumes:
        message = f"needs --volume {claim}=PATH, the directory that stands for the claim {claim} here"
        raise UnsupportedError(SOURCE_FIELD, message)
    root = volumes[claim].resolve()
    if not root.is_dir():
        raise StartError(f"--volume {claim}={volumes[claim]}: not a directory")
    target = (root / path).resolve()
    if not target.is_relative_to(root):
        raise UnsupportedError(SOURCE_FIELD, f"{path} leads out of the volume {claim}")
    return root / path
