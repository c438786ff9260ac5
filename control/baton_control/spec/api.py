"""The LLMDeployment: every field with its type, default and bounds, and the rules that span fields.

The only source of the schema: files, live objects, CRDs and the reference page follow from it. Values here are parsed
(seconds, bytes), never text; how a file becomes one is `manifest`'s business. What a field does is said at the field.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.engine_sizes import EngineSpec
from baton_control.spec.model_source import SourceText
from baton_control.spec.named_formats import ReasoningFormat, ToolFormat, go_together
from baton_control.spec.pod_options import EnvSpec, HugepagesSpec, VolumeSpec
from baton_control.spec.quantities import (
    Allowed,
    AnnotationValue,
    CpuQuantity,
    DeploymentName,
    Duration,
    Label,
    LabelValue,
    MemoryText,
    ObjectName,
    Origin,
    QualifiedName,
    Rate,
    ResourceName,
    ServedName,
    TimeOfDay,
    Weekday,
)

API_VERSION = "baton.dev/v1alpha1"
KIND = "LLMDeployment"
MAX_REPLICAS = 1024
RESERVED_LABELS = ("baton.dev", "kubernetes.io", "k8s.io", "istio.io")
"""Domains whose labels a tenant cannot set on Pods, nor those of their subdomains, whatever an installation allows."""
RESERVED_ANNOTATIONS = ("baton.dev",)
"""The same for annotations. Of all others each installation says which it allows."""


class Dtype(enum.StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class TransportMode(enum.StrEnum):
    AUTO = "Auto"
    UCX = "UCX"
    TCP = "TCP"


class Verify(enum.StrEnum):
    FULL = "full"
    STAMPS = "stamps"


class Disaggregation(enum.StrEnum):
    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class PrefillUnavailable(enum.StrEnum):
    FAIL = "Fail"
    DECODE_LOCALLY = "DecodeLocally"


class ScalingMode(enum.StrEnum):
    SLO = "SLO"
    EXTERNAL = "External"
    OFF = "Off"


class ServiceType(enum.StrEnum):
    CLUSTER_IP = "ClusterIP"
    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


def _refuse_reserved(field: str, keys: Iterable[str], domains: tuple[str, ...]) -> None:
    for key in keys:
        domain = key.partition("/")[0] if "/" in key else ""
        if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in domains):
            raise broken_rule(f"{field}.{key}", f"not allowed: {domain} is reserved")


class CacheSpec(Model):
    """Where fetched weights are kept on a cluster."""

    size: MemoryText = "100Gi"
    """Size of the volume claim, which keeps every source that was fetched into it. It can only grow."""
    storage_class_name: ObjectName | None = None
    """StorageClass of the claim, one that many nodes can read at once; unset: the cluster's default."""


class TolerationSpec(Model):
    """A taint that workers tolerate."""

    key: QualifiedName
    """Key of the taint that is tolerated; the installation lists which may be."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists` tolerates every value of the key, `Equal` the one in `value`."""
    value: LabelValue | None = None
    """Value of the taint; only with operator `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint; unset: all effects."""

    @model_validator(mode="after")
    def _exists_has_no_value(self) -> TolerationSpec:
        if self.operator == "Exists" and self.value:
            raise broken_rule("value", "not allowed: must be absent while operator is Exists")
        return self


class NodesSpec(Model):
    """Onto which nodes Pods go."""

    node_selector: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels that a node must have."""
    tolerations: Annotated[tuple[TolerationSpec, ...], Field(max_length=16, strict=False)] = ()
    """Taints of nodes that the Pods may run on nevertheless."""


class ResourceSpec(Model):
    """What one Pod asks of its node."""

    cpu: CpuQuantity | None = None
    """CPUs requested, not limited; on CPU pools also how many threads compute. Unset: none requested, one thread."""
    memory: MemoryText | None = None
    """Memory requested, and the limit; unset: neither."""


class FetchSpec(Model):
    """The Job that fetches a remote model."""

    resources: ResourceSpec = ResourceSpec()
    """What the Job asks for; unset: 250m and 256Mi, with a limit of 2Gi."""
    placement: NodesSpec = NodesSpec()
    """Onto which nodes the Job goes."""
    service_account_annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=8)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Job's ServiceAccount, such as a cloud identity; the installation lists which."""

    @model_validator(mode="after")
    def _not_reserved(self) -> FetchSpec:
        _refuse_reserved("serviceAccountAnnotations", self.service_account_annotations, RESERVED_ANNOTATIONS)
        return self


class ModelSpec(Model):
    """Which model is served, and as what."""

    source: SourceText
    """Where the weights are. Remote sources are fetched once, pinned and verified."""
    served_name: ServedName
    """What clients write as `model`."""
    aliases: Annotated[tuple[ServedName, ...], Field(max_length=16, strict=False)] = ()
    """Other names that clients may write as `model`; only the gateway knows them. None: only `servedName`."""
    max_context_tokens: Annotated[int, Field(ge=16, le=1 << 20)]
    """Longest prompt and answer together, in tokens."""
    dtype: Annotated[Dtype, Field(strict=False)] = Dtype.AUTO
    """Of weights and arithmetic; `auto`: what the model's config.json says, and float32 on CPUs."""
    quantization: Literal["auto", "none"] = "auto"
    """`auto`: as the checkpoint's quantization_config says. `none`: quantised checkpoints are refused."""
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """`auto`: as `dtype`. `fp8` (e4m3, with scales) halves KV of 16-bit models and needs accelerators."""
    generation_defaults: bool = True
    """Whether sampling that a request leaves open follows the model's generation_config.json; otherwise the API's."""
    tool_format: ToolFormat = "auto"
    """How the model writes calls of tools (docs/tools.md). `auto`: its chat template tells. `none`: none are read."""
    reasoning_format: ReasoningFormat = "auto"
    """How it writes thoughts. `auto`: its chat template tells. `none`: nothing is split off. `harmony` names both."""
    cache: CacheSpec = CacheSpec()
    fetch: FetchSpec = FetchSpec()
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with credentials for fetching the model; unset: none are sent."""

    @model_validator(mode="after")
    def _names_differ(self) -> ModelSpec:
        if len({self.served_name, *self.aliases}) <= len(self.aliases):
            raise broken_rule("aliases", "not allowed: names must differ from each other and from servedName")
        if not go_together(self.tool_format, self.reasoning_format):
            raise broken_rule("reasoningFormat", "not allowed: harmony is toolFormat and reasoningFormat at once")
        return self


class TargetSpec(Model):
    """A latency target: `percentile` percent of the requests stay at or under `target`."""

    target: Annotated[Duration, Field(ge=0.001, le=3600)]
    """The latency that is promised."""
    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95.0
    """Percent of the requests that have to meet the target."""


class SloSpec(Model):
    """The latencies that the pools are sized for."""

    ttft: TargetSpec = TargetSpec.model_construct(target=0.5)
    """Time to the first token; sizes the prefill pool."""
    tpot: TargetSpec = TargetSpec.model_construct(target=0.05)
    """Time per output token after the first; sizes the decode pool."""


class ReplicaSpec(Model):
    """How many workers a pool may have."""

    min: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Fewest workers. 0 in both pools lets them sleep (`autoscaling.scaleToZeroAfter`)."""
    max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Most workers, whoever sizes the pool."""

    @model_validator(mode="after")
    def _ordered(self) -> ReplicaSpec:
        if self.min > self.max:
            raise broken_rule("min", f"{self.min} is not allowed: must be at most replicas.max, which is {self.max}")
        return self


class AcceleratorSpec(Model):
    """What a pool computes on."""

    resource: ResourceName
    """Extended resource of the node that each rank of a worker takes one of."""


class PlacementSpec(NodesSpec):
    """Onto which nodes equal Pods go, and how they are spread."""

    topology_key: QualifiedName | None = None
    """Pods are spread over the values of this node label; unset: over nodes."""
    spread: Literal["Preferred", "Required"] = "Preferred"
    """`Required` leaves a Pod without a node rather than spread them unevenly."""


class ResourceClaimSpec(Model):
    """A claim of dynamic resource allocation that each worker gets."""

    name: Label
    """Name of the claim within the Pod; names differ within a pool."""
    resource_claim_template_name: ObjectName
    """ResourceClaimTemplate in the same namespace that the claim is made from."""


class PoolSpec(Model):
    """One pool of equal workers."""

    replicas: ReplicaSpec = ReplicaSpec()
    """How many workers the pool may have."""
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    """Accelerators that share one worker's model; only 1 is supported yet."""
    accelerator: AcceleratorSpec | None = None
    """What the pool computes on; unset: CPUs."""
    engine: EngineSpec = EngineSpec()
    placement: PlacementSpec = PlacementSpec()
    resources: ResourceSpec = ResourceSpec()
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pool's Pods, one that the installation lists; unset: the cluster's default."""
    scheduler_name: ObjectName | None = None
    """Scheduler that places the pool's Pods, one that the installation lists; unset: the cluster's default."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pool's Pods, one that the installation lists; unset: the node's default."""
    resource_claims: Annotated[tuple[ResourceClaimSpec, ...], Field(max_length=8, strict=False)] = ()
    """Claims of dynamic resource allocation that every worker gets."""
    queue: Label | None = None
    """Kueue queue that admits the pool's Pods; unset: none has to."""
    env: Annotated[tuple[EnvSpec, ...], Field(max_length=32, strict=False)] = ()
    """Variables for the libraries that workers use, such as UCX_NET_DEVICES."""
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=8, strict=False)] = ()
    """Volumes that workers get beside Baton's own."""
    shared_memory: MemoryText | None = None
    """Size of /dev/shm, which counts towards the memory of the Pod; unset: the container runtime's, often 64Mi."""
    hugepages: HugepagesSpec | None = None
    """Huge pages of each worker; unset: none."""

    @model_validator(mode="after")
    def _claims_differ(self) -> PoolSpec:
        names = [claim.name for claim in self.resource_claims]
        if len(set(names)) < len(names):
            raise broken_rule("resourceClaims", "not allowed: names must differ")
        return self

    @model_validator(mode="after")
    def _options_differ(self) -> PoolSpec:
        for field, found in (
            ("env", [each.name for each in self.env]),
            ("volumes", [each.name for each in self.volumes]),
            ("volumes", [each.mount_path for each in self.volumes]),
        ):
            if len(set(found)) < len(found):
                raise broken_rule(field, "not allowed: names and mount paths must differ")
        return self

    @model_validator(mode="after")
    def _parallel_needs_accelerators(self) -> PoolSpec:
        if self.tensor_parallel > 1 and self.accelerator is None:
            raise broken_rule(
                "tensorParallel", f"{self.tensor_parallel} is not allowed: must be 1 without an accelerator"
            )
        return self

    @model_validator(mode="after")
    def _offloading_needs_accelerators(self) -> PoolSpec:
        if self.engine.offloaded_layers is not None and self.accelerator is None:
            message = f"{self.engine.offloaded_layers} is not allowed: needs an accelerator"
            raise broken_rule("engine.offloadedLayers", message)
        return self

    @property
    def accelerators_at_min(self) -> int:
        """Accelerators that the pool takes at its smallest."""
        return self.replicas.min * self.tensor_parallel if self.accelerator else 0


class KvTransferSpec(Model):
    """How KV travels from prefill to decode workers."""

    transport: Annotated[TransportMode, Field(strict=False)] = TransportMode.AUTO
    """`UCX` writes into the peer's memory, by RDMA where there is any. `Auto`: UCX where both have it, else TCP."""
    min_bandwidth: Annotated[Rate, Field(ge=1e6, le=1e13)] | None = None
    """A lane measured slower than this makes the condition TransportVerified false; unset: no least rate."""
    verify: Annotated[Verify, Field(strict=False)] = Verify.FULL
    """`full` compares a checksum of every piece of KV; `stamps` only its bookkeeping."""


class RoutingSpec(Model):
    """Which workers a request is sent to."""

    disaggregation: Annotated[Disaggregation, Field(strict=False)] = Disaggregation.AUTO
    """Which prompts the prefill pool computes: all, none, or those where it serves the targets better."""
    prefill_unavailable: Annotated[PrefillUnavailable, Field(strict=False)] = PrefillUnavailable.DECODE_LOCALLY
    """Without a prefill worker: decode workers compute prompts, or requests get 503 after 10 s."""


class BudgetSpec(Model):
    """What scaling may spend."""

    max_accelerators: Annotated[int, Field(ge=1, le=MAX_REPLICAS * 64)] | None = None
    """Most accelerators of both pools together; unset: bounded by `replicas.max` alone."""


class ScheduleSpec(Model):
    """A daily window, in UTC, in which mode SLO keeps more workers than `replicas.min`."""

    start: TimeOfDay
    """When the window begins, in UTC."""
    end: TimeOfDay
    """When it ends, not included; a window that ends before it starts ends on the next day."""
    days: Annotated[tuple[Annotated[Weekday, Field(strict=False)], ...], Field(max_length=7, strict=False)] = ()
    """Days on which the window starts; none: every day."""
    prefill: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """At least so many prefill workers; unset: `replicas.min`."""
    decode: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """At least so many decode workers; unset: `replicas.min`."""

    @model_validator(mode="after")
    def _says_something(self) -> ScheduleSpec:
        if self.start == self.end:
            raise broken_rule("end", f"{self.end} is not allowed: must differ from start")
        if self.prefill is None and self.decode is None:
            raise broken_rule("prefill", "is missing: a schedule names prefill, decode or both")
        return self


class AutoscalingSpec(Model):
    """Who sizes the pools, and within what."""

    mode: Annotated[ScalingMode, Field(strict=False)] = ScalingMode.SLO
    """Who sizes the pools: Baton, another autoscaler, or nobody. Quote "Off": YAML reads a bare Off as false."""
    budget: BudgetSpec = BudgetSpec()
    """What both pools together may take."""
    scale_to_zero_after: Annotated[Duration, Field(ge=60, le=7 * 86_400)] | None = None
    """Quiet time after which both pools sleep; needs `replicas.min` 0 in both. Unset: they never sleep."""
    schedules: Annotated[tuple[ScheduleSpec, ...], Field(max_length=16, strict=False)] = ()
    """Daily windows with more workers; pools do not sleep in them."""


class RolloutSpec(Model):
    """How workers of a new template take over."""

    max_surge: Annotated[int, Field(ge=0, le=64)] = 1
    """Workers above the wanted number, per pool, while templates change."""
    max_unavailable: Annotated[int, Field(ge=0, le=64)] = 0
    """Workers below the wanted number, per pool, while templates change."""
    canary: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of a pool that a new template takes before the rest follows; 0: no stop."""
    paused: bool = False
    """New templates wait; pools still follow their size, and one where nothing runs starts."""

    @model_validator(mode="after")
    def _can_move(self) -> RolloutSpec:
        if self.max_surge == 0 and self.max_unavailable == 0:
            raise broken_rule("maxSurge", "0 is not allowed: must be at least 1 while maxUnavailable is 0")
        return self


class ServiceSpec(Model):
    """The Service that clients use."""

    type: Annotated[ServiceType, Field(strict=False)] = ServiceType.CLUSTER_IP
    """`NodePort` and `LoadBalancer` can be reached from outside of the cluster."""
    port: Annotated[int, Field(ge=1, le=65_535)] = 80
    """TCP port of the Service."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Service, such as those of a cloud's load balancers; the installation lists which."""

    @model_validator(mode="after")
    def _not_reserved(self) -> ServiceSpec:
        _refuse_reserved("annotations", self.annotations, RESERVED_ANNOTATIONS)
        return self


class TlsSpec(Model):
    """The certificate of the gateway."""

    secret_name: ObjectName
    """Secret of type kubernetes.io/tls in the same namespace; a renewed certificate is taken without a restart."""


class ApiKeysSpec(Model):
    """The keys with which clients may ask."""

    secret_name: ObjectName
    """Secret in the same namespace. Each entry holds a key a line; its name is the tenant's. Re-read on change."""


class RouteSpec(Model):
    """An HTTPRoute to the gateway's Service, where the cluster serves the Gateway API."""

    parent: ObjectName
    """Gateway that the route attaches to."""
    parent_namespace: Label | None = None
    """Its namespace; unset: that of the LLMDeployment."""
    hostnames: Annotated[tuple[ObjectName, ...], Field(max_length=16, strict=False)] = ()
    """Host names of requests that the route takes; none: all that reach the Gateway."""


class LimitSpec(Model):
    """What one request may take, and how many may wait."""

    max_queue_duration: Annotated[Duration, Field(ge=0.001, le=3600)] | None = None
    """Longest predicted wait; beyond it 429. By default ten TTFT targets, and half of one if that lasts."""
    max_queued: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """Sequences (prompts × n) that may wait in a gateway process; more get 429. By default 4096."""
    max_request_duration: Annotated[Duration, Field(ge=1, le=86_400)] = 600.0
    """From arrival to last token; later a request ends with an error. Pods get this long to finish when told to go."""


class GatewaySpec(Model):
    """The processes that speak HTTP with clients."""

    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Pods of the gateway."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes of each Pod, sharing one port; one uses one CPU."""
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    """Serve HTTPS; unset: plain HTTP."""
    route: RouteSpec | None = None
    """Attach an HTTPRoute of the Gateway API; unset: none."""
    api_keys: ApiKeysSpec | None = None
    """Who may ask; unset: Pods of the same namespace, without a key."""
    open_access: bool = False
    """Whoever reaches the gateway may ask without a key; only without `apiKeys`."""
    allowed_origins: Annotated[tuple[Origin, ...], Field(max_length=16, strict=False)] = ()
    """Origins whose pages in browsers may call the API (CORS), such as https://chat.example, or * for any; none: no
    page may."""
    limits: LimitSpec = LimitSpec()
    resources: ResourceSpec = ResourceSpec()
    """What one Pod asks for; unset: 250m and 512Mi, with a limit of 4Gi."""
    placement: PlacementSpec = PlacementSpec()
    priority_class_name: ObjectName | None = None
    """PriorityClass of the gateway's Pods, one that the installation lists; unset: the cluster's default."""

    @model_validator(mode="after")
    def _outsiders_have_a_key(self) -> GatewaySpec:
        if self.open_access and self.api_keys is not None:
            raise broken_rule("openAccess", "true is not allowed: must be false while apiKeys is given")
        if self.open_access or self.api_keys is not None:
            return self
        needed = "needs gateway.apiKeys, or gateway.openAccess: true to let anybody ask"
        if self.service.type is not ServiceType.CLUSTER_IP:
            raise broken_rule("service.type", f"{self.service.type} is not allowed: {needed}")
        if self.route is not None:
            raise broken_rule("route", f"not allowed: {needed}")
        return self


class PodMetadataSpec(Model):
    """What all Pods of the deployment are marked with."""

    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the Pods, beside Baton's own. The installation lists which keys with a domain are allowed."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Pods; the installation lists which are allowed."""

    @model_validator(mode="after")
    def _not_reserved(self) -> PodMetadataSpec:
        _refuse_reserved("labels", self.labels, RESERVED_LABELS)
        _refuse_reserved("annotations", self.annotations, RESERVED_ANNOTATIONS)
        return self


class DeploymentSpec(Model):
    """What is served, how fast, and by how many workers."""

    model: ModelSpec
    slo: SloSpec = SloSpec()
    prefill: PoolSpec = PoolSpec()
    """The pool that computes prompts; sized by the TTFT target."""
    decode: PoolSpec = PoolSpec()
    """The pool that generates; sized by the TPOT target."""
    kv_transfer: KvTransferSpec = KvTransferSpec()
    routing: RoutingSpec = RoutingSpec()
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    rollout: RolloutSpec = RolloutSpec()
    gateway: GatewaySpec = GatewaySpec()
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8, strict=False)] = ()
    """Secrets in the same namespace with which the images are pulled."""
    pod_metadata: PodMetadataSpec = PodMetadataSpec()
    operator_class: Label | None = None
    """Which of several operators in a cluster works on it, as its --class says; unset: the one without a class."""

    @model_validator(mode="after")
    def _pools_sleep_together(self) -> DeploymentSpec:
        prefill, decode = self.prefill.replicas.min, self.decode.replicas.min
        if (prefill == 0) != (decode == 0):
            field = "prefill.replicas.min" if prefill == 0 else "decode.replicas.min"
            raise broken_rule(field, "0 is not allowed: must be 0 in both pools or in neither, they sleep together")
        if self.autoscaling.scale_to_zero_after is not None and prefill > 0:
            raise broken_rule("autoscaling.scaleToZeroAfter", "not allowed: needs replicas.min 0 in both pools")
        return self

    @model_validator(mode="after")
    def _float8_has_accelerators(self) -> DeploymentSpec:
        if self.model.kv_cache_dtype == "fp8" and not (self.prefill.accelerator and self.decode.accelerator):
            raise broken_rule("model.kvCacheDtype", "fp8 is not allowed: needs an accelerator in both pools")
        return self

    @model_validator(mode="after")
    def _decode_offloads_on_purpose(self) -> DeploymentSpec:
        engine = self.decode.engine
        if engine.offloaded_layers is not None and not engine.offload_decode:
            message = f"{engine.offloaded_layers} is not allowed: every decode step would wait; offloadDecode allows it"
            raise broken_rule("decode.engine.offloadedLayers", message)
        return self

    @model_validator(mode="after")
    def _schedules_stay_in_bounds(self) -> DeploymentSpec:
        for place, schedule in enumerate(self.autoscaling.schedules):
            for role, wanted, pool in (
                ("prefill", schedule.prefill, self.prefill),
                ("decode", schedule.decode, self.decode),
            ):
                if wanted is not None and wanted > pool.replicas.max:
                    message = f"{wanted} is not allowed: must be at most {role}.replicas.max, which is {{}}"
                    field = f"autoscaling.schedules[{place}].{role}"
                    raise broken_rule(field, message.format(pool.replicas.max))
        return self

    @model_validator(mode="after")
    def _budget_holds_the_minimum(self) -> DeploymentSpec:
        needed = self.prefill.accelerators_at_min + self.decode.accelerators_at_min
        budget = self.autoscaling.budget.max_accelerators
        if budget is not None and budget < needed:
            message = f"{budget} is not allowed: must be at least {needed}, what both pools take at replicas.min"
            raise broken_rule("autoscaling.budget.maxAccelerators", message)
        return self


class MetadataSpec(Model):
    """The standard metadata of Kubernetes, as far as files may have it."""

    name: DeploymentName
    """Names of all objects begin with it."""
    namespace: Label = "default"
    """Where the objects live; on a laptop a part of the name."""
    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the LLMDeployment itself."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the LLMDeployment itself."""


class LLMDeployment(Model):
    """One model served by a prefill pool, a decode pool and a gateway."""

    api_version: Annotated[Literal["baton.dev/v1alpha1"], Allowed(f"'{API_VERSION}'")]
    """Version of the schema that this object follows."""
    kind: Annotated[Literal["LLMDeployment"], Allowed(f"'{KIND}'")]
    """What kind of object this is."""
    metadata: MetadataSpec
    spec: DeploymentSpec
