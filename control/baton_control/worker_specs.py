"""WorkerSpec: one process of a pool or the gateway as plain data, for whoever runs it: Pods or local processes.

`worker_spec` and `gateway_spec` are pure. What the manifest decides goes into `argv`; what differs between processes
of one template (ports, announce file) is appended by the site with `instance_arguments` and stays out of the template
hash. Manifest text reaches a command line only as the value of `--flag=value`, one argument each, so that it can be
neither an option nor two.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from baton_control.errors import UnsupportedError
from baton_control.hashes import Revision, content_hash
from baton_control.spec.api import Disaggregation, LLMDeployment, PrefillUnavailable
from baton_control.spec.gateway_fields import UnknownFieldsPolicy
from baton_control.spec.pools import PoolSpec
from baton_control.spec.reserved_env import CLOSED_ENV
from baton_control.spec.served_model import Dtype
from baton_wire.messages.values import POOL_ROLES, Role

FLEXIBLE = "baton_flexible_worker"
MODULES = {Role.PREFILL: "baton_prefill_worker", Role.DECODE: "baton_decode_worker", Role.GATEWAY: "baton_gateway"}
_PREFILL_UNAVAILABLE = {PrefillUnavailable.FAIL: "fail", PrefillUnavailable.DECODE_LOCALLY: "decode-locally"}


class Device(enum.StrEnum):
    """What a worker computes on, as its --device flag takes it."""

    CPU = "cpu"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class Site:
    """What the place that runs the workers decides, equal for all workers of a deployment."""

    python: str
    """The interpreter that starts the modules."""
    model_path: str
    """Where a worker finds the model."""
    keys_path: str
    """Directory with the link keys."""
    prefill_discovery: str
    decode_discovery: str
    prefill_device: Device
    decode_device: Device
    threads: int | None = None
    """Compute threads of one worker; None: the worker's own choice."""
    drain_s: float | None = None
    """How long a process that is told to stop may finish its requests; None: its own default."""
    worker_drain_s: float | None = None
    """The same for workers, when theirs is another."""
    tls_path: str | None = None
    """Where a gateway finds the certificate that `gateway.tls` names; None: there are no Secrets here."""
    api_keys_path: str | None = None
    """Where a gateway finds the keys of its clients; None: it asks for none."""
    operator_url: str | None = None
    """Where gateways tell their load, `{namespace}/{name}` of the deployment added; None: nowhere."""
    paced_path: str | None = None
    """Step times that stand in for a model: only where nothing is served in earnest, never on a cluster."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory that a process reads."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How to run one process. Equal specs are interchangeable."""

    role: Role
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    """Added to a minimal environment that the site chooses."""
    mounts: tuple[Mount, ...]
    ports: tuple[str, ...]
    """Names of the ports that the process listens on."""
    accelerators: int
    accelerator_resource: str | None
    revision: Revision
    flips: bool = False
    """Its template is that of both pools: only `instance_arguments` say as what a process begins."""


def worker_spec(deployment: LLMDeployment, role: Role, site: Site) -> WorkerSpec:
    """The worker template of a pool. Raises UnsupportedError for what no worker can do yet."""
    pool = pool_spec(deployment, role)
    if pool.tensor_parallel > 1:
        raise UnsupportedError(f"spec.{role}.tensorParallel", f"{pool.tensor_parallel} is not supported yet: must be 1")
    flips = deployment.spec.autoscaling.flips
    if flips:
        _require_alike(deployment, site)
    argv = (site.python, "-m", FLEXIBLE if flips else MODULES[role], *_arguments(deployment, role, pool, site))
    mounts = (Mount("model", site.model_path), Mount("keys", site.keys_path))
    env = (("OMP_NUM_THREADS", str(site.threads or 1)), *CLOSED_ENV)
    ports = ("http", "pair") if flips or role is Role.DECODE else ("http",)
    fit = content_hash(_fit(deployment, site))
    resource = pool.accelerator.resource if pool.accelerator else None
    said = {"argv": argv[1:], "env": env, "resource": resource, "pool": _shape(pool)}
    template = content_hash(said if flips else {"role": role, **said})
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
    """The gateway's template. Raises UnsupportedError for a certificate or keys where there are no Secrets."""
    spec = deployment.spec
    arguments = (
        f"--keys={site.keys_path}",
        f"--prefill-discovery={site.prefill_discovery}",
        f"--decode-discovery={site.decode_discovery}",
        f"--processes={spec.gateway.processes}",
        f"--disaggregation={spec.routing.disaggregation.lower()}",
        f"--slo-ttft-s={spec.slo.ttft.target:g}",
        f"--slo-tpot-s={spec.slo.tpot.target:g}",
        f"--prefill-unavailable={_PREFILL_UNAVAILABLE[spec.routing.prefill_unavailable]}",
        f"--max-request-duration-s={spec.gateway.limits.max_request_duration:g}",
        *(() if spec.model.generation_defaults else ("--generation-defaults=off",)),
        *_unknown_fields(deployment),
        *_formats(deployment),
        *_aliases(deployment),
        *_queue(deployment),
        *_operator(deployment, site),
        *_tls(deployment, site),
        *_api_keys(deployment, site),
        *((f"--allowed-origins={','.join(spec.gateway.allowed_origins)}",) if spec.gateway.allowed_origins else ()),
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
    """What one process of a template gets on top: its addresses (`host:port`, port 0: any) and its announce file, and
    where it `flips` the role that it begins as.

    `second_listen` is a decode worker's address for prefill workers, or the gateway's for administration.
    """
    arguments = (f"--listen={listen}", f"--announce={announce}", *((f"--role={role}",) if flips else ()))
    if second_listen is None:
        return arguments
    flag = "--admin-listen" if role is Role.GATEWAY else "--pair-listen"
    return (*arguments, f"{flag}={second_listen}")


def _require_alike(deployment: LLMDeployment, site: Site) -> None:
    """Raises UnsupportedError when a worker of one pool could not be one of the other."""
    prefill, decode = (_shape(pool_spec(deployment, role)) for role in POOL_ROLES)
    unlike = sorted(name for name in prefill.keys() | decode.keys() if prefill.get(name) != decode.get(name))
    if unlike:
        text = f"prefill and decode have unequal `{unlike[0]}`: must be equal where workers flip"
        raise UnsupportedError("spec.autoscaling.flips", text)
    if site.prefill_device is not site.decode_device:
        devices = f"prefill computes on {site.prefill_device} and decode on {site.decode_device}"
        raise UnsupportedError("spec.autoscaling.flips", f"{devices}: must be the same where workers flip")


def pool_spec(deployment: LLMDeployment, role: Role) -> PoolSpec:
    """The part of the manifest that describes a pool."""
    pools = {Role.PREFILL: deployment.spec.prefill, Role.DECODE: deployment.spec.decode}
    return pools[role]


def keeps_answers(deployment: LLMDeployment) -> bool:
    """Whether prefill workers also decode what they computed. Not where every token would wait for layers in the
    host's memory; workers that flip need not be told."""
    spec = deployment.spec
    is_wanted = spec.routing.keep_answers and spec.routing.disaggregation is Disaggregation.AUTO
    is_slow = bool(spec.prefill.engine.offloaded_layers) and not spec.prefill.engine.offload_decode
    return is_wanted and not is_slow and not spec.autoscaling.flips


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
        f"--transport={transfer.transport.lower()}",
    )
    optional = {
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
        "--decode-discovery": site.decode_discovery if flips or role is Role.PREFILL else None,
        "--prefill-discovery": site.prefill_discovery if flips else None,
        "--paced": site.paced_path,
    }
    return (
        *always,
        *(f"{flag}={value}" for flag, value in optional.items() if value is not None),
        *(("--offload-decode",) if engine.offload_decode else ()),
        *(("--keep-answers",) if role is Role.PREFILL and keeps_answers(deployment) else ()),
        *_drain(site, site.worker_drain_s),
        *(f"--{each.name}" if each.value is None else f"--{each.name}={each.value}" for each in pool.arguments),
    )


def _operator(deployment: LLMDeployment, site: Site) -> tuple[str, ...]:
    """Whom the gateway tells, and how long requests wait there for workers that have to be started first."""
    spec, metadata = deployment.spec, deployment.metadata
    arguments: tuple[str, ...] = ()
    if site.operator_url is not None:
        arguments = (f"--operator={site.operator_url}/{metadata.namespace}/{metadata.name}",)
        if spec.prefill.replicas.min == 0:
            arguments += (f"--park-s={spec.gateway.limits.max_request_duration:g}",)
    return arguments


def _formats(deployment: LLMDeployment) -> tuple[str, ...]:
    """How the model writes calls and thoughts, where the manifest says it."""
    model = deployment.spec.model
    said = {"--tool-format": model.tool_format, "--reasoning-format": model.reasoning_format}
    return tuple(f"{flag}={value}" for flag, value in said.items() if value != "auto")


def _unknown_fields(deployment: LLMDeployment) -> tuple[str, ...]:
    said = deployment.spec.gateway.unknown_fields
    return () if said is UnknownFieldsPolicy.REFUSE else (f"--unknown-fields={said.lower()}",)


def _aliases(deployment: LLMDeployment) -> tuple[str, ...]:
    """Other names of the model: workers are not told, so that none is restarted for a name."""
    model = deployment.spec.model
    pairs = ",".join(f"{alias}={model.served_name}" for alias in model.aliases)
    return (f"--model-aliases={pairs}",) if pairs else ()


def _queue(deployment: LLMDeployment) -> tuple[str, ...]:
    """Bounds of the line; what is not set is the gateway's to choose."""
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
        raise UnsupportedError("spec.gateway.apiKeys", "there are no Secrets here: give --api-key-file instead")
    return ()


def _drain(site: Site, own_s: float | None = None) -> tuple[str, ...]:
    seconds = site.drain_s if own_s is None else own_s
    return () if seconds is None else (f"--drain-s={seconds:g}",)


def _dtype(dtype: Dtype, device: Device) -> Dtype:
    """CPUs compute in float32 unless told otherwise: the smaller types are slower there."""
    return Dtype.FLOAT32 if dtype is Dtype.AUTO and device is Device.CPU else dtype


def _kv_cache_dtype(dtype: str, device: Device) -> str | None:
    """None where it need not be said. Raises UnsupportedError: no CPU kernel reads float8."""
    if dtype == "fp8" and device is Device.CPU:
        raise UnsupportedError("spec.model.kvCacheDtype", "fp8 is not supported on CPUs: must be auto")
    return None if dtype == "auto" else dtype


def _offloaded_layers(layers: int | None, role: Role, device: Device) -> int | None:
    """Raises UnsupportedError: a CPU computes in the memory where offloaded layers would be."""
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
    """Everything of the pool that makes a new template: all but the number of replicas and what stands on other
    objects. Defaults stay out, so that a field added later changes no hash."""
    return pool.model_dump(
        mode="json", by_alias=True, exclude={"replicas", "service_account_annotations"}, exclude_defaults=True
    )
