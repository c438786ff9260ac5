"""`baton up`: from the command line to a running deployment. Whatever can be refused is refused here.

Progress goes to standard error; standard output gets one line with the URL for requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton_control.spec.api import LLMDeployment
from baton_control.spec.gateway_fields import OversizedMaxTokens, UnknownFieldsPolicy
from baton_control.spec.manifest import read_manifest, read_tenants
from baton_control.spec.model_source import parse_source
from baton_control.worker_specs import Device
from baton_gateway.parent_death import die_with_parent
from baton_gateway.tenancy.key_files import KeyFiles
from baton_local.errors import StartError
from baton_local.fetching.default_deployment import as_yaml
from baton_local.fetching.local_model import (
    LocalDeployment,
    SourceRequest,
    deployment_from_manifest,
    deployment_from_source,
)
from baton_local.fetching.model_argument import deployment_name, parse_model_argument, served_name
from baton_local.fetching.model_cache import ModelCache, cache_folder
from baton_local.fleet.client_keys import NO_KEY_OPTIONS, ClientKeys, KeyOptions, client_keys
from baton_local.fleet.desired_processes import plan_fleet
from baton_local.fleet.emulation import Emulation, parse_emulation, write_paced
from baton_local.fleet.gpu_placement import check_ranks
from baton_local.fleet.gpu_room import check_gpus, free_by_id, gpu_need, read_gpus, shared_kv, with_kv
from baton_local.fleet.host import RANDOM, check_model, devices, gpu_ids, reserve_port
from baton_local.fleet.local_runtime import LocalRuntime, RunPlan
from baton_local.fleet.local_site import LOOPBACK, local_site
from baton_local.fleet.local_tenants import LocalTenants
from baton_local.fleet.memory_check import address_space_limit, check_memory, free_memory, memory_need
from baton_local.fleet.processes import ChildProcesses
from baton_local.fleet.run_dir import (
    RunDir,
    base_directory,
    claimed,
    directory_name,
    refuse_running,
    remove_old,
    write_key,
    write_private,
)
from baton_local.fleet.supervision import Patience
from baton_local.shared_options import KEY_VARIABLE
from baton_wire.messages.values import POOL_ROLES, Role

LEAVE_MARGIN_S = 30.0
DEFAULT_NAMESPACE = "default"
DEFAULT_PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of the command line."""

    manifest: Path | None = None
    """File of the LLMDeployment; None: `source` is served with the defaults."""
    source: SourceRequest | None = None
    cache: ModelCache | None = None
    """Cache of downloaded models; None: the user's default one."""
    host: str = LOOPBACK
    port: int = 8000
    volumes: dict[str, Path] = field(default_factory=dict)
    device: Device | None = None
    processes: int | None = None
    """Gateway processes; None: as many as the manifest says."""
    emulate: str | None = None
    """Accelerator and model whose step times replace computing (see `emulation`)."""
    patience: Patience = DEFAULT_PATIENCE
    keys: KeyOptions = NO_KEY_OPTIONS
    generation_defaults: bool = True
    """False: off, whatever the manifest says."""
    ignore_unknown_fields: bool = False
    """True: on, whatever the manifest says."""
    clamp_max_tokens: bool = False
    """True: on, whatever the manifest says."""


def run_up(options: UpOptions) -> int:
    """Run a deployment until a signal; returns the exit status. Raises LocalError, OperatorError or BadMessageError."""
    die_with_parent(signal.SIGTERM)
    written = None if options.manifest is None else read_manifest(options.manifest)
    gateway = None if written is None else written.spec.gateway
    needs_no_key = gateway is not None and (gateway.open_access or gateway.tenants)
    keys = client_keys(options.keys, os.environ, needs_no_key, options.host)
    if options.keys.is_open and gateway is not None and gateway.tenants:
        raise StartError("--open: not allowed while spec.gateway.tenants is true")
    os.environ.pop(KEY_VARIABLE, None)  # or every child would inherit it
    with contextlib.ExitStack() as stack:
        reserved = None
        if _is_fetched(options, written):  # no download that ends in a taken name or port
            refuse_running(base_directory(), _directory_of(options, written), _rename(written))
            reserved = stack.enter_context(reserve_port(options.host, options.port))
        prepared = _prepare(options, written)
        refuse_running(base_directory(), prepared.directory, _rename(written))
        reserved = reserved or stack.enter_context(reserve_port(options.host, options.port))
        return _run_on(reserved.getsockname()[1], options, written, prepared, keys)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A deployment that this machine can run, as far as can be known before any process starts."""

    deployment: LLMDeployment
    local: LocalDeployment
    chosen: dict[Role, Device]
    """The device of each pool."""
    gpus: tuple[str, ...]
    emulation: Emulation | None

    @property
    def directory(self) -> str:
        """The name of its run directory."""
        return directory_name(self.deployment.metadata.namespace, self.deployment.metadata.name)


def _is_fetched(options: UpOptions, written: LLMDeployment | None) -> bool:
    """True if the model comes from elsewhere. Raises StartError for a MODEL that cannot be one."""
    if written is not None:
        return parse_source(written.spec.model.source).is_remote
    assert options.source is not None, "argparse requires a manifest or a source"
    return not isinstance(parse_model_argument(options.source.text), Path)


def _directory_of(options: UpOptions, written: LLMDeployment | None) -> str:
    """The name of the run directory, known before the model is here."""
    if written is not None:
        return directory_name(written.metadata.namespace, written.metadata.name)
    assert options.source is not None, "argparse requires a manifest or a source"
    served = options.source.served_name or served_name(parse_model_argument(options.source.text))
    return directory_name(DEFAULT_NAMESPACE, deployment_name(served))


def _rename(written: LLMDeployment | None) -> str:
    """The place that a deployment gets its name from."""
    return "--served-name" if written is None else "metadata.name"


def _prepare(options: UpOptions, written: LLMDeployment | None) -> _Prepared:
    """Fetch the model if it is remote, and refuse what this machine cannot run. Raises LocalError, OperatorError."""
    gpus = gpu_ids(os.environ)
    local = _local_deployment(options, written, bool(gpus))
    deployment, model = apply_options(local.deployment, options), local.argument
    emulation = None if options.emulate is None else parse_emulation(options.emulate, deployment)
    chosen = (
        devices(deployment, options.device, len(gpus)) if emulation is None else dict.fromkeys(POOL_ROLES, Device.CPU)
    )
    check_model(deployment, model, is_emulated=emulation is not None)
    check_ranks(deployment, chosen, gpus)
    if emulation is None and not model.startswith(RANDOM):
        check_memory(memory_need(deployment, Path(model), chosen), free_memory(), address_space_limit())
        deployment = _fit_gpus(deployment, Path(model), chosen, gpus)
    return _Prepared(deployment, local, chosen, gpus, emulation)


def _run_on(port: int, options: UpOptions, written: LLMDeployment | None, prepared: _Prepared, keys: ClientKeys) -> int:
    """Run the deployment on a reserved port. `written`: the manifest, if there is one."""
    deployment, local, emulation = prepared.deployment, prepared.local, prepared.emulation
    longest_s = deployment.spec.gateway.limits.max_request_duration
    patience = replace(options.patience, worker_leave_s=longest_s + LEAVE_MARGIN_S)
    remove_old(base_directory(), time.time())
    with (
        contextlib.nullcontext() if local.cached is None else ModelCache(local.cached.folder).hold(local.cached),
        claimed(base_directory(), prepared.directory, _rename(written)) as run,
        socket.create_server((LOOPBACK, 0)) as link,
    ):
        write_key(run)
        if written is None:
            write_private(run.manifest, as_yaml(deployment))
        if emulation is not None:
            write_paced(run.paced, emulation)
        say(f"logs, keys and state of this run are in {run.root}")
        site = local_site(run, local.argument, prepared.chosen, link.getsockname()[1], emulation, longest_s)
        keys_path = keys.place(run)
        site = replace(site, api_keys_path=None if keys_path is None else str(keys_path))
        tenants = _tenants(options.manifest, deployment, run, keys_path)
        if tenants is not None:
            site = replace(site, tenants_path=str(run.tenants))
        fleet = plan_fleet(deployment, site)
        with ChildProcesses() as processes:
            plan = RunPlan(
                run, fleet, options.host, port, prepared.gpus, patience, emulation, site.api_keys_path, tenants
            )
            return asyncio.run(LocalRuntime(plan, processes, link).serve())


def _tenants(
    manifest: Path | None, deployment: LLMDeployment, run: RunDir, keys_path: Path | None
) -> LocalTenants | None:
    """The table of LLMTenants; None: the deployment lets none in. Raises ManifestError, OSError, ValueError."""
    if manifest is None:
        return None
    if deployment.spec.gateway.tenants:
        by_digest = {} if keys_path is None else KeyFiles(keys_path).by_digest
        return LocalTenants(manifest, run.tenants, deployment.metadata.namespace, say, by_digest)
    if read_tenants(manifest):
        say("note: the LLMTenants have no effect: spec.gateway.tenants is false")
    return None


def say(text: str) -> None:
    """Write a line to standard error."""
    print(f"baton: {text}", file=sys.stderr, flush=True)


def _fit_gpus(
    deployment: LLMDeployment, model: Path, chosen: Mapping[Role, Device], gpus: Sequence[str]
) -> LLMDeployment:
    """The deployment, with a size of KV for workers that share a GPU. Raises StartError for weights that do not fit."""
    if Device.CUDA not in chosen.values() or not gpus:
        return deployment
    if (need := gpu_need(deployment, model, chosen)) is None:
        return deployment
    free = free_by_id(gpus, read_gpus(), os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID")
    check_gpus(need, free)
    size = shared_kv(need, free)
    return deployment if size is None else with_kv(deployment, need, size)


def _local_deployment(options: UpOptions, written: LLMDeployment | None, has_gpu: bool) -> LocalDeployment:
    """The deployment, with its model on this machine. Raises LocalError, OperatorError."""
    cache = options.cache or ModelCache(cache_folder(os.environ))
    if written is not None and options.manifest is not None:
        return deployment_from_manifest(written, options.manifest, options.volumes, cache, os.environ)
    assert options.source is not None, "argparse requires a manifest or a source"
    device = options.device or (Device.CUDA if has_gpu and options.emulate is None else Device.CPU)
    return deployment_from_source(options.source, cache, os.environ, device)


def apply_options(deployment: LLMDeployment, options: UpOptions) -> LLMDeployment:
    """The deployment with the options of the command line that override the manifest."""
    spec = deployment.spec
    gateway: dict[str, object] = {} if options.processes is None else {"processes": options.processes}
    if options.ignore_unknown_fields:
        gateway["unknown_fields"] = UnknownFieldsPolicy.IGNORE
    if options.clamp_max_tokens:
        clamped = {"oversized_max_tokens": OversizedMaxTokens.CLAMP}
        gateway["limits"] = spec.gateway.limits.model_copy(update=clamped)
    if gateway:
        spec = spec.model_copy(update={"gateway": spec.gateway.model_copy(update=gateway)})
    if not options.generation_defaults:
        spec = spec.model_copy(update={"model": spec.model.model_copy(update={"generation_defaults": False})})
    return deployment.model_copy(update={"spec": spec})
