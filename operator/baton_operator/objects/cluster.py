"""The settings of the cluster and of the installation, and the site that they give the workers of a deployment."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from baton_control.errors import UnsupportedError
from baton_control.hashes import content_hash
from baton_control.names import pool_name
from baton_control.spec.api import LLMDeployment
from baton_control.spec.model_source import ModelSource, Scheme, parse_source
from baton_control.spec.pools import PoolSpec
from baton_control.spec.prefill_stages import stages_of
from baton_control.spec.resource_quantities import CPUS
from baton_control.spec.served_model import CacheType
from baton_control.worker_specs import Device, Site
from baton_operator.objects.batch_settings import NO_BATCHES, BatchSettings
from baton_operator.objects.fetch_settings import NO_SETTINGS, FetchSettings
from baton_operator.objects.identity_settings import NO_IDENTITY, IdentitySettings
from baton_operator.objects.network_settings import DEFAULT_NETWORK, NetworkSettings
from baton_operator.objects.pod_ids import DEFAULT_IDS, PodIds
from baton_operator.objects.pod_policy import DEFAULT_POLICY, PodPolicy
from baton_wire.log_format import LOG_FORMAT_VARIABLE, LogFormat
from baton_wire.messages.values import Role

HTTP_PORT, PAIR_PORT, OPERATOR_PORT = 8000, 8001, 8443
ADMIN_ADDRESS = "127.0.0.1:8002"
"""The gateway's admin listener, for `kubectl port-forward`: no other Pod reaches a loopback address."""
MODEL_PATH, KEYS_PATH, RUN_PATH = "/model", "/etc/baton/keys", "/run/baton"
TLS_PATH, API_KEYS_PATH, TENANTS_PATH = "/etc/baton/tls", "/etc/baton/api-keys", "/etc/baton/tenants"
LEDGER_PATH = "/tmp/ledger"
DRAIN_MARGIN_S = 10.0
"""Seconds that a stopping process gets beyond the longest request, to notice the signal and finish the last request."""
MAX_THREADS = 1024
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PINNED = re.compile(r"[a-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Platform:
    """Settings of the operator, equal for all deployments. Raises ValueError for an image without a digest."""

    worker_image: str
    gateway_image: str
    operator_namespace: str = "baton-system"
    monitoring_namespace: str | None = None
    """The namespace that may read metrics; None: no namespace may."""
    cluster_domain: str = "cluster.local"
    fetch_ports: tuple[int, ...] = (443,)
    """Ports that fetch Jobs may reach, at public addresses and in `fetch_cidrs`."""
    fetch_cidrs: tuple[str, ...] = ()
    """Networks with private addresses that fetch Jobs may reach: those of mirrors and registries."""
    fetch: FetchSettings = NO_SETTINGS
    """Additions to fetch Pods: proxy, private CA, labels and annotations."""
    python: str = "python"
    monitors: bool = False
    """True: PodMonitors are made."""
    alerts: bool = False
    """True: PrometheusRules are made."""
    monitoring_labels: tuple[tuple[str, str], ...] = ()
    """Labels of PodMonitors and PrometheusRules, by which a Prometheus selects them."""
    monitoring_interval: str = "15s"
    """The time between two reads of a Pod's metrics."""
    metrics_compat: str = ""
    """`vllm`: gateways and workers serve metrics under vLLM's names too."""
    ledger: str = ""
    """`stdout`: gateways write what each request used to their standard output."""
    batches: BatchSettings = NO_BATCHES
    """The claim in which gateways keep files and batches."""
    identity: IdentitySettings = NO_IDENTITY
    """The identities besides keys that gateways with tenants accept."""
    json_logs: bool = False
    """True: gateways, workers and fetch Pods log JSON, as the operator does."""
    llmd_labels: bool = False
    """True: Pods have the labels by which tools of llm-d select."""
    inference_pool: bool = False
    """True: the gateway Pods of a deployment are an InferencePool, and its route points to it."""
    route_timeouts: bool = True
    """True: HTTPRoutes ask their Gateway for no time-out. False: it refuses the field."""
    network: NetworkSettings = DEFAULT_NETWORK
    """The installation's part of NetworkPolicies."""
    pod_ids: PodIds = DEFAULT_IDS
    """The user and groups of Pods."""
    operator_service: str | None = None
    """The Service in the operator's namespace that gateways link with; None: gateways report nothing."""
    hears_gateways: bool = True
    """True: passes use the reports of gateways (`--routable-from=gateway`)."""
    pod_policy: PodPolicy = DEFAULT_POLICY
    """The settings of Pods that LLMDeployments may use."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets of each namespace for pulling images, on the ServiceAccounts. Pods that name some do not use them."""

    def identity_of(self, deployment: LLMDeployment) -> IdentitySettings:
        """Return the identities besides keys that a deployment's gateways accept: they name LLMTenants, so only with
        `gateway.tenants`."""
        has_tenants = deployment.spec.gateway.tenants
        return self.identity.in_namespace(deployment.metadata.namespace) if has_tenants else NO_IDENTITY

    @property
    def log_variables(self) -> tuple[tuple[str, str], ...]:
        """The variables that give Pods the format of their logs; none for text."""
        return ((LOG_FORMAT_VARIABLE, LogFormat.JSON.value),) if self.json_logs else ()

    def __post_init__(self) -> None:
        for field in ("worker_image", "gateway_image"):
            image: str = getattr(self, field)
            if _PINNED.fullmatch(image) is None:
                raise ValueError(f"{field}: {image!r} is not allowed: must be IMAGE@sha256:DIGEST")
        for name in self.pull_secrets:
            if _OBJECT_NAME.fullmatch(name) is None:
                raise ValueError(f"workload pull secrets: {name!r} is not allowed: must be the name of a Secret")


@dataclass(frozen=True, slots=True)
class Owner:
    """The live LLMDeployment that the objects belong to."""

    uid: str
    adopts: bool = False
    """True: it takes over objects with its label that have no controller."""


def site_of(deployment: LLMDeployment, role: Role, platform: Platform) -> Site:
    """The surroundings of a role's Pods: paths, addresses, devices. Raises UnsupportedError for what this version
    cannot run on a cluster."""
    prefill, decode = deployment.spec.prefill, deployment.spec.decode
    if deployment.spec.autoscaling.flips:
        _require_one_account(deployment)
        _require_gateways(platform)
    is_flexible = deployment.spec.autoscaling.flips and role is not Role.GATEWAY
    pool = {Role.PREFILL: prefill, Role.DECODE: decode}.get(role)
    return Site(
        python=platform.python,
        model_path=_model_path(deployment),
        keys_path=KEYS_PATH,
        # KV is handed over to the second port; the first is the gateways'.
        prefill_discovery=_discovery(deployment, Role.PREFILL, platform, PAIR_PORT if is_flexible else HTTP_PORT),
        decode_discovery=_discovery(
            deployment, Role.DECODE, platform, PAIR_PORT if is_flexible or role is Role.PREFILL else HTTP_PORT
        ),
        prefill_device=_device(prefill),
        decode_device=_device(decode),
        threads=None if pool is None else _threads(pool),
        operator_url=_operator_url(platform) if role is Role.GATEWAY else None,
        tls_path=TLS_PATH,
        api_keys_path=None if deployment.spec.gateway.api_keys is None else API_KEYS_PATH,
        tenants_path=TENANTS_PATH,
        drain_s=deployment.spec.gateway.limits.max_request_duration + DRAIN_MARGIN_S,
    )


def _require_one_account(deployment: LLMDeployment) -> None:
    """Raises UnsupportedError where the pools differ in their ServiceAccounts: a flexible Pod has only one."""
    prefill, decode = (pool.service_account_annotations for pool in (deployment.spec.prefill, deployment.spec.decode))
    if prefill != decode:
        text = "prefill and decode have unequal `serviceAccountAnnotations`: must be equal where workers flip"
        raise UnsupportedError("spec.autoscaling.flips", text)


def _require_gateways(platform: Platform) -> None:
    """Raises UnsupportedError without links to gateways, which carry the orders to flip and their outcomes."""
    if platform.operator_service is None or not platform.hears_gateways:
        text = "the operator gets no reports of gateways (--gateway-listen, --routable-from): must be false"
        raise UnsupportedError("spec.autoscaling.flips", text)


def model_source(deployment: LLMDeployment) -> ModelSource:
    """The model's source. Raises UnsupportedError when Pods cannot reach it."""
    text = deployment.spec.model.source
    source = parse_source(text)
    if source.scheme in (Scheme.FILE, Scheme.RANDOM) and not str(source.path).startswith("/"):
        raise UnsupportedError("spec.model.source", "a path on a cluster must begin with '/': it is one in the image")
    return source


def needs_fetch(deployment: LLMDeployment) -> bool:
    """True if a Job has to fetch the model. Raises UnsupportedError like `model_source`."""
    is_image = deployment.spec.model.cache.type is CacheType.IMAGE_VOLUME
    return model_source(deployment).is_remote and not is_image


def _model_path(deployment: LLMDeployment) -> str:
    """The model's path in a worker: a mount, or a folder of its image."""
    source = model_source(deployment)
    if needs_fetch(deployment):
        return f"{MODEL_PATH}/{model_key(deployment.spec.model.source)}"
    if source.scheme is Scheme.RANDOM:
        return deployment.spec.model.source
    return str(source.path) if source.scheme is Scheme.FILE else MODEL_PATH


def model_key(source: str) -> str:
    """The folder of a fetched model in its volume; each source has its own."""
    return f"model-{content_hash(source)}"


def grace_s(deployment: LLMDeployment, before_stop_s: int = 0) -> int:
    """Seconds between SIGTERM and SIGKILL: no request that was accepted is ever cut."""
    longest = deployment.spec.gateway.limits.max_request_duration
    return math.ceil(longest + 2 * DRAIN_MARGIN_S) + before_stop_s


def _discovery(deployment: LLMDeployment, role: Role, platform: Platform, port: int) -> str:
    metadata = deployment.metadata
    service = f"{pool_name(metadata.name, role)}.{metadata.namespace}.svc.{platform.cluster_domain}."
    return f"dns:{service}:{port}"


def _operator_url(platform: Platform) -> str | None:
    if platform.operator_service is None:
        return None
    host = f"{platform.operator_service}.{platform.operator_namespace}.svc.{platform.cluster_domain}."
    return f"http://{host}:{OPERATOR_PORT}/gateways"


def _device(pool: PoolSpec) -> Device:
    return Device.CPU if pool.accelerator is None else Device.CUDA


def _threads(pool: PoolSpec) -> int | None:
    """The whole CPUs that each rank of a worker has; None: the worker asks for none or computes on an accelerator."""
    cpu = pool.resources.cpu
    if cpu is None or pool.accelerator is not None:
        return None
    ranks = pool.tensor_parallel * stages_of(pool)
    return min(max(CPUS.count(cpu) // (1000 * ranks), 1), MAX_THREADS)
