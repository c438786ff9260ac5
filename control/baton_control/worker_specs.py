"""WorkerSpec: one process of a pool or the gateway as plain data, for Pods and for local processes.

`worker_spec` and `gateway_spec` are pure. The manifest decides `argv`; arguments that differ between processes of one
template (ports, announce file) are appended by the site with `instance_arguments` and stay out of the template hash.
Manifest text reaches a command line only as the value of `--flag=value`, one argument each, so that it cannot become
another option.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from baton_control.errors import UnsupportedError
from baton_control.hashes import Revision, content_hash
from baton_control.spec.api import Disaggregation, LLMDeployment, PrefillUnavailable, TransportMode
from baton_control.spec.gateway_fields import OversizedMaxTokens, UnknownFieldsPolicy
from baton_control.spec.pools import PoolSpec
from baton_control.spec.prefill_stages import refuse_stages, stages_of
from baton_control.spec.reserved_env import CLOSED_ENV
from baton_control.spec.served_model import Dtype, ModelTask
from baton_control.spec.tensor_parallel import RANKS_NEED_TCP
from baton_wire.messages.values import POOL_ROLES, Role

FLEXIBLE = "baton_flexible_worker"
MODULES = {Role.PREFILL: "baton_prefill_worker", Role.DECODE: "baton_decode_worker", Role.GATEWAY: "baton_gateway"}
_PREFILL_UNAVAILABLE = {PrefillUnavailable.FAIL: "fail", PrefillUnavailable.DECODE_LOCALLY: "decode-locally"}


class Device(enum.StrEnum):
    """Device of a worker, as the value of its --device flag."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Site:
    """The site that runs a deployment: values that are equal for all its processes."""

    python: str
    """Python interpreter that starts the modules."""
    model_path: str
    """Value of a worker's --model flag."""
    keys_path: str
    """Directory with the link keys."""
    prefill_discovery: str
    decode_discovery: str
    prefill_device: Device
    decode_device: Device
    threads: int | None = None
    """Compute threads of one rank of a worker; None: the worker's own default."""
    drain_s: float | None = None
    """Time that a stopping process has to finish its requests; None: its own default."""
    worker_drain_s: float | None = None
    """The same for workers; None: `drain_s`."""
    tls_path: str | None = None
    """Path of the certificate that `gateway.tls` names; None: the site has no Secrets."""
    api_keys_path: str | None = None
    """Path of the clients' API keys; None: the gateway needs none."""
    tenants_path: str | None = None
    """Folder with the compiled table of LLMTenants, for a deployment with `gateway.tenants`."""
    ledger_path: str | None = None
    """Folder in which gateways record what requests use; None: they do not."""
    batches_path: str | None = None
    """Folder of files and batches; None: gateways do not serve them."""
    operator_url: str | None = None
    """URL for the gateways' telemetry, without the `/{namespace}/{name}` of the deployment; None: none is sent."""
    paced_path: str | None = None
    """File of step times for emulated workers; None on every cluster."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory that is mounted for a process."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The specification of a process. Processes of equal specs are interchangeable."""

    role: Role
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Variables besides the minimal environment of the site."""
    mounts: tuple[Mount, ...]
    ports: tuple[str, ...]
    """Names of the ports that the process listens on."""
    accelerators: int
    accelerator_resource: str | None
    """The extended resource of the accelerators; None: there are none, or a claim brings them."""
    revision: Revision
    flips: bool = False
    """True: both pools have this template, and `instance_arguments` name the role in which a process starts."""


def worker_spec(deployment: LLMDeployment, role: Role, site: Site) -> WorkerSpec:
    """The worker template of a pool. Raises UnsupportedError for a value that no worker supports yet."""
    pool = pool_spec(deployment, role)
    flips = deployment.spec.autoscaling.flips
    if flips:
        _require_alike(deployment, site)
    device = site.prefill_device if role is Role.PREFILL else site.decode_device
    refuse_stages(pool, role, flips=flips, is_on_cpu=device is Device.CPU)
    argv = (site.python, "-m", FLEXIBLE if flips else MODULES[role], *_arguments(deployment, role, pool, site))
    mounts = (Mount("model", site.model_path), Mount("keys", site.keys_path))
    env = (("OMP_NUM_THREADS", str(site.threads or 1)), *CLOSED_ENV)
    ports = ("http", "pair") if flips or role is Role.DECODE else ("http",)
    fit = content_hash(_fit(deployment, site))
    resource = pool.accelerator.resource if pool.accelerator else None
    content = {"argv": argv[1:], "env": env, "resource": resource, "pool": _shape(pool)}
    template = content_hash(content if flips else {"role": role, **content})
    return WorkerSpec(
        role=role,
        argv=(*argv, f"--template-hash={template}"),
        env=env,
        mounts=mounts,
        ports=ports,
        accelerators=pool.tensor_parallel if pool.accelerator else 0,
        accelerator_resource=resource,
        revision=Revision(fit, template),
        flips=flips,
    )


def gateway_spec(deployment: LLMDeployment, site: Site) -> WorkerSpec:
    """The gateway's template. Raises UnsupportedError for a certificate or API keys if the site has no Secrets."""
    spec = deployment.spec
    arguments = (
        f"--keys={site.keys_path}",
        f"--prefill-discovery={site.prefill_discovery}",
        *((f"--decode-discovery={site.decode_discovery}",) if spec.model.generates else ()),
        f"--processes={spec.gateway.processes}",
        f"--disaggregation={spec.routing.disaggregation.lower()}",
        f"--slo-ttft-s={spec.slo.ttft.target:g}",
        f"--slo-tpot-s={spec.slo.tpot.target:g}",
        f"--prefill-unavailable={_PREFILL_UNAVAILABLE[spec.routing.prefill_unavailable]}",
        f"--max-request-duration-s={spec.gateway.limits.max_request_duration:g}",
        *(() if spec.model.generation_defaults else ("--generation-defaults=off",)),
        *_unknown_fields(deployment),
        *_oversized_max_tokens(deployment),
        *_formats(deployment),
        *_aliases(deployment),
        *_queue(deployment),
        *_operator(deployment, site),
        *_tls(deployment, site),
        *_api_keys(deployment, site),
        *_tenants(deployment, site),
        *((f"--allowed-origins={','.join(spec.gateway.allowed_origins)}",) if spec.gateway.allowed_origins else ()),
        *_tracing(deployment),
        *_ledger(site),
        *(() if site.batches_path is None else (f"--batch-folder={site.batches_path}",)),
        *_drain(site),
    )
    argv = (site.python, "-m", MODULES[Role.GATEWAY], *arguments)
    template = content_hash({"role": Role.GATEWAY, "argv": argv[1:]})
    return WorkerSpec(
        role=Role.GATEWAY,
        argv=argv,
        env=(),
        mounts=(Mount("keys", site.keys_path),),
        ports=("http", "admin"),
        accelerators=0,
        accelerator_resource=None,
        revision=Revision("", template),
    )


def instance_arguments(
    role: Role, listen: str, announce: str, second_listen: str | None = None, *, flips: bool = False
) -> tuple[str, ...]:
    """The arguments of one process of a template: its addresses (`host:port`, port 0: any) and its announce file, and
    the role in which it starts if it `flips`.

    `second_listen` is a decode worker's address for prefill workers, or the gateway's for administration.
    """
    arguments = (f"--listen={listen}", f"--announce={announce}", *((f"--role={role}",) if flips else ()))
    if second_listen is None:
        return arguments
    flag = "--admin-listen" if role is Role.GATEWAY else "--pair-listen"
    return (*arguments, f"{flag}={second_listen}")


def _require_alike(deployment: LLMDeployment, site: Site) -> None:
    """Check that workers of one pool could serve in the other. Raises UnsupportedError."""
    prefill, decode = (_shape(pool_spec(deployment, role)) for role in POOL_ROLES)
    unlike = sorted(name for name in prefill.keys() | decode.keys() if prefill.get(name) != decode.get(name))
    if unlike:
        text = f"prefill and decode have unequal `{unlike[0]}`: must be equal for flips"
        raise UnsupportedError("spec.autoscaling.flips", text)
    if site.prefill_device is not site.decode_device:
        devices = f"prefill computes on {site.prefill_device} and decode on {site.decode_device}"
        raise UnsupportedError("spec.autoscaling.flips", f"{devices}: must be the same for flips")


def pool_spec(deployment: LLMDeployment, role: Role) -> PoolSpec:
    """The part of the manifest that describes a pool."""
    pools = {Role.PREFILL: deployment.spec.prefill, Role.DECODE: deployment.spec.decode}
    return pools[role]


def pool_roles(deployment: LLMDeployment) -> tuple[Role, ...]:
    """The roles of the pools: without the task Generate there is no decode pool."""
    return POOL_ROLES if deployment.spec.model.generates else (Role.PREFILL,)


def keeps_answers(deployment: LLMDeployment) -> bool:
    """True when prefill workers get the flag to decode prompts that they computed. Not with offloaded layers, for which
    every token would wait, and not with stages; flexible workers need no flag."""
    spec = deployment.spec
    is_wanted = spec.routing.keep_answers and spec.routing.disaggregation is Disaggregation.AUTO
    is_slow = bool(spec.prefill.engine.offloaded_layers) and not spec.prefill.engine.offload_decode
    is_able = not spec.autoscaling.flips and spec.model.generates and stages_of(spec.prefill) == 1
    return is_wanted and not is_slow and is_able


def _arguments(deployment: LLMDeployment, role: Role, pool: PoolSpec, site: Site) -> tuple[str, ...]:
    model, transfer, engine = deployment.spec.model, deployment.spec.kv_transfer, pool.engine
    device = site.prefill_device if role is Role.PREFILL else site.decode_device
    flips = deployment.spec.autoscaling.flips
    always = (
        f"--model={site.model_path}",
        f"--served-name={model.served_name}",
        f"--keys={site.keys_path}",
        f"--device={device}",
        f"--dtype={_dtype(model.dtype, device)}",
        f"--max-context-tokens={model.max_context_tokens}",
        f"--verify={transfer.verify}",
        f"--transport={_transport(transfer.transport, pool.tensor_parallel, device)}",
    )
    optional = {
        "--tasks": _tasks(model.tasks),
        "--quantization": None if model.quantization == "none" else model.quantization,
        "--kv-cache-dtype": _kv_cache_dtype(model.kv_cache_dtype, device),
        "--min-bandwidth": None if transfer.min_bandwidth is None else f"{transfer.min_bandwidth:g}",
        "--kv-cache-bytes": engine.kv_cache_memory,
        "--block-tokens": engine.block_tokens,
        "--max-sequences": engine.max_sequences,
        "--max-step-tokens": engine.max_step_tokens,
        "--chunk-tokens": engine.chunk_tokens,
        "--max-waiting": engine.max_waiting,
        "--offloaded-layers": _offloaded_layers(engine.offloaded_layers, role, device),
        "--threads": site.threads,
        "--tensor-parallel": pool.tensor_parallel if pool.tensor_parallel > 1 else None,
        "--decode-discovery": site.decode_discovery if _dials_decode_workers(deployment, role) else None,
        "--prefill-discovery": site.prefill_discovery if flips else None,
        "--paced": site.paced_path,
    }
    return (
        *always,
        *(f"{flag}={value}" for flag, value in optional.items() if value is not None),
        *(("--offload-decode",) if engine.offload_decode else ()),
        *(("--keep-answers",) if role is Role.PREFILL and keeps_answers(deployment) else ()),
        *_drain(site, site.worker_drain_s),
        *(f"--{flag.name}" if flag.value is None else f"--{flag.name}={flag.value}" for flag in pool.arguments),
    )


def _dials_decode_workers(deployment: LLMDeployment, role: Role) -> bool:
    return deployment.spec.autoscaling.flips or (role is Role.PREFILL and deployment.spec.model.generates)


def _operator(deployment: LLMDeployment, site: Site) -> tuple[str, ...]:
    """Flags for the gateway's telemetry, and for how long requests wait while the first worker starts."""
    spec, metadata = deployment.spec, deployment.metadata
    arguments: tuple[str, ...] = ()
    if site.operator_url is not None:
        arguments = (f"--operator={site.operator_url}/{metadata.namespace}/{metadata.name}",)
        if spec.prefill.replicas.min == 0:
            arguments += (f"--park-s={spec.gateway.limits.max_request_duration:g}",)
    return arguments


def _formats(deployment: LLMDeployment) -> tuple[str, ...]:
    """Flags for the formats of tool calls and reasoning, if the manifest names them."""
    model = deployment.spec.model
    formats = {"--tool-format": model.tool_format, "--reasoning-format": model.reasoning_format}
    return tuple(f"{flag}={value}" for flag, value in formats.items() if value != "auto")


def _unknown_fields(deployment: LLMDeployment) -> tuple[str, ...]:
    policy = deployment.spec.gateway.unknown_fields
    return () if policy is UnknownFieldsPolicy.REFUSE else (f"--unknown-fields={policy.lower()}",)


def _oversized_max_tokens(deployment: LLMDeployment) -> tuple[str, ...]:
    """The flag for requests that ask for too many tokens; none for the default, so that no old gateway restarts."""
    policy = deployment.spec.gateway.limits.oversized_max_tokens
    return () if policy is OversizedMaxTokens.REFUSE else (f"--oversized-max-tokens={policy.lower()}",)


def _tracing(deployment: LLMDeployment) -> tuple[str, ...]:
    """The flags for traces. Workers get none: the gateway makes their spans."""
    tracing = deployment.spec.telemetry.tracing
    if tracing is None:
        return ()
    return (f"--tracing-endpoint={tracing.endpoint}", f"--tracing-sample-ratio={tracing.sample_ratio:g}")


def _ledger(site: Site) -> tuple[str, ...]:
    """The flags for the ledger; none where there is none, so that no old gateway restarts."""
    return () if site.ledger_path is None else (f"--ledger={site.ledger_path}",)


def _aliases(deployment: LLMDeployment) -> tuple[str, ...]:
    """The flag for other names of the model. Only gateways get it, so that a new name restarts no worker."""
    model = deployment.spec.model
    pairs = ",".join(f"{alias}={model.served_name}" for alias in model.aliases)
    return (f"--model-aliases={pairs}",) if pairs else ()


def _queue(deployment: LLMDeployment) -> tuple[str, ...]:
    """Flags for the bounds of the queue; the gateway has defaults for absent ones."""
    limits = deployment.spec.gateway.limits
    duration = () if limits.max_queue_duration is None else (f"--max-queue-s={limits.max_queue_duration:g}",)
    return duration if limits.max_queued is None else (*duration, f"--max-queued={limits.max_queued}")


def _tls(deployment: LLMDeployment, site: Site) -> tuple[str, ...]:
    if deployment.spec.gateway.tls is None:
        return ()
    if site.tls_path is None:
        raise UnsupportedError("spec.gateway.tls", "there are no Secrets without a cluster: must be absent")
    return (f"--tls={site.tls_path}",)


def _api_keys(deployment: LLMDeployment, site: Site) -> tuple[str, ...]:
    if site.api_keys_path is not None:
        return (f"--api-keys={site.api_keys_path}",)
    if deployment.spec.gateway.api_keys is not None:
        raise UnsupportedError("spec.gateway.apiKeys", "there are no Secrets without a cluster: use --api-key-file")
    return ()


def _tenants(deployment: LLMDeployment, site: Site) -> tuple[str, ...]:
    if not deployment.spec.gateway.tenants:
        return ()
    if site.tenants_path is None:
        raise UnsupportedError("spec.gateway.tenants", "true is not allowed: no LLMTenants are known here")
    return (f"--tenants={site.tenants_path}",)


def _drain(site: Site, own_s: float | None = None) -> tuple[str, ...]:
    seconds = site.drain_s if own_s is None else own_s
    return () if seconds is None else (f"--drain-s={seconds:g}",)


def _dtype(dtype: Dtype, device: Device) -> Dtype:
    """The type for weights and arithmetic; `auto` is float32 on CPUs, where smaller types are slower."""
    return Dtype.FLOAT32 if dtype is Dtype.AUTO and device is Device.CPU else dtype


def _transport(transport: TransportMode, degree: int, device: Device) -> str:
    """The transport of KV. Raises UnsupportedError: a site may have GPUs for a pool without `accelerator`."""
    if transport is TransportMode.UCX and degree > 1 and device is not Device.CPU:
        raise UnsupportedError("spec.kvTransfer.transport", f"{transport} is not allowed: {RANKS_NEED_TCP}")
    return transport.lower()


def _tasks(tasks: tuple[ModelTask, ...]) -> str | None:
    """The workers' tasks; None: the default, by which a worker does what its model can."""
    return None if tasks == (ModelTask.GENERATE,) else ",".join(task.lower() for task in tasks)


def _kv_cache_dtype(dtype: str, device: Device) -> str | None:
    """The type of the KV cache; None: the default. Raises UnsupportedError: no CPU kernel reads float8."""
    if dtype == "fp8" and device is Device.CPU:
        raise UnsupportedError("spec.model.kvCacheDtype", "fp8 is not supported on CPUs: must be auto")
    return None if dtype == "auto" else dtype


def _offloaded_layers(layers: int | None, role: Role, device: Device) -> int | None:
    """The number of offloaded layers. Raises UnsupportedError on CPUs, whose memory already holds all layers."""
    if layers is not None and device is Device.CPU:
        raise UnsupportedError(f"spec.{role.value}.engine.offloadedLayers", "not supported on CPUs: must be absent")
    return layers


def _fit(deployment: LLMDeployment, site: Site) -> dict[str, str]:
    model = deployment.spec.model
    dtypes = (_dtype(model.dtype, site.prefill_device), _dtype(model.dtype, site.decode_device))
    return {
        "source": model.source,
        "path": site.model_path,
        "dtype": "/".join(dtypes),
        "quantization": model.quantization,
        "kvCacheDtype": model.kv_cache_dtype,
    }


def _shape(pool: PoolSpec) -> dict[str, object]:
    """The fields of a pool that make a new template: all but the replicas and the fields of other objects. Defaults are
    left out, so that a field added later changes no hash."""
    return pool.model_dump(
        mode="json", by_alias=True, exclude={"replicas", "service_account_annotations"}, exclude_defaults=True
    )
