"""The LLMDeployment: every field with its type, default and bounds, and the rules that span fields.

The only source of the schema: files, live objects, CRDs and the reference page follow from it. Values here are parsed
(seconds, bytes), never text; how a file becomes one is `manifest`'s business. What a field does is said at the field.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.model_source import SourceText
from baton_control.spec.quantities import (
    Allowed,
    AnnotationValue,
    CpuQuantity,
    DeploymentName,
    Duration,
    Label,
    LabelValue,
    Memory,
    MemoryText,
    ObjectName,
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
RESERVED_METADATA = ("baton.dev", "kubernetes.io", "k8s.io", "istio.io")
"""Domains whose labels and annotations a tenant cannot set on Pods."""


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


class CacheSpec(Model):
    """Where fetched weights are kept on a cluster."""

    size: MemoryText = "100Gi"
    storage_class_name: ObjectName | None = None


class ModelSpec(Model):
    """Which model is served, and as what."""

    source: SourceText
    served_name: ServedName
    max_context_tokens: Annotated[int, Field(ge=16, le=1 << 20)]
    """Prompt and answer together."""
    dtype: Annotated[Dtype, Field(strict=False)] = Dtype.AUTO
    """Of weights and arithmetic; `auto` takes what the model's config.json says, float32 on CPU."""
    quantization: Literal["none"] = "none"
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    """`auto` is the same as `dtype`; `fp8` (e4m3, with scales) halves KV of 16-bit models and needs accelerators."""
    cache: CacheSpec = CacheSpec()
    credentials_secret: ObjectName | None = None
    """Secret in the same namespace with credentials for fetching the model."""


class TargetSpec(Model):
    """A latency target: `percentile` percent of the requests stay at or under `target`."""

    target: Annotated[Duration, Field(ge=0.001, le=3600)]
    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95.0


class SloSpec(Model):
    ttft: TargetSpec = TargetSpec.model_construct(target=0.5)
    """Time to the first token; sizes the prefill pool."""
    tpot: TargetSpec = TargetSpec.model_construct(target=0.05)
    """Time per output token after the first; sizes the decode pool."""


class ReplicaSpec(Model):
    """How many workers a pool may have."""

    min: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1

    @model_validator(mode="after")
    def _ordered(self) -> ReplicaSpec:
        if self.min > self.max:
            raise broken_rule("min", f"{self.min} is not allowed: must be at most replicas.max, which is {self.max}")
        return self


class AcceleratorSpec(Model):
    resource: ResourceName
    """Extended resource that a rank takes one of."""


class TolerationSpec(Model):
    key: QualifiedName
    operator: Literal["Exists", "Equal"] = "Exists"
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None

    @model_validator(mode="after")
    def _exists_has_no_value(self) -> TolerationSpec:
        if self.operator == "Exists" and self.value:
            raise broken_rule("value", "not allowed: must be absent while operator is Exists")
        return self


class PlacementSpec(Model):
    """Onto which nodes the workers of a pool go."""

    node_selector: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    tolerations: Annotated[tuple[TolerationSpec, ...], Field(max_length=16, strict=False)] = ()
    topology_key: QualifiedName | None = None
    """Workers are spread over values of this node label."""


class ResourceSpec(Model):
    cpu: CpuQuantity | None = None
    memory: MemoryText | None = None


class ResourceClaimSpec(Model):
    name: Label
    resource_claim_template_name: ObjectName


class EngineSpec(Model):
    """Sizes of one worker; unset ones are chosen by the worker from the model and the memory it finds."""

    kv_cache_memory: Annotated[Memory, Field(ge=1 << 20, le=1 << 44)] | None = None
    block_tokens: Annotated[int, Field(ge=8, le=256)] | None = None
    max_sequences: Annotated[int, Field(ge=1, le=4096)] | None = None
    max_step_tokens: Annotated[int, Field(ge=16, le=1 << 18)] | None = None


class PoolSpec(Model):
    """One pool of equal workers."""

    replicas: ReplicaSpec = ReplicaSpec()
    tensor_parallel: Annotated[int, Field(ge=1, le=64)] = 1
    accelerator: AcceleratorSpec | None = None
    """None: the pool computes on CPUs."""
    engine: EngineSpec = EngineSpec()
    placement: PlacementSpec = PlacementSpec()
    resources: ResourceSpec = ResourceSpec()
    priority_class_name: ObjectName | None = None
    scheduler_name: ObjectName | None = None
    runtime_class_name: ObjectName | None = None
    resource_claims: Annotated[tuple[ResourceClaimSpec, ...], Field(max_length=8, strict=False)] = ()
    queue: Label | None = None
    """Kueue queue that admits the pool's Pods."""

    @model_validator(mode="after")
    def _claims_differ(self) -> PoolSpec:
        names = [claim.name for claim in self.resource_claims]
        if len(set(names)) < len(names):
            raise broken_rule("resourceClaims", "not allowed: names must differ")
        return self

    @model_validator(mode="after")
    def _parallel_needs_accelerators(self) -> PoolSpec:
        if self.tensor_parallel > 1 and self.accelerator is None:
            raise broken_rule(
                "tensorParallel", f"{self.tensor_parallel} is not allowed: must be 1 without an accelerator"
            )
        return self

    @property
    def accelerators_at_min(self) -> int:
        """Accelerators that the pool takes at its smallest."""
        return self.replicas.min * self.tensor_parallel if self.accelerator else 0


class KvTransferSpec(Model):
    transport: Annotated[TransportMode, Field(strict=False)] = TransportMode.AUTO
    min_bandwidth: Annotated[Rate, Field(ge=1e6, le=1e13)] | None = None
    """A measured bandwidth below this becomes a condition."""
    verify: Annotated[Verify, Field(strict=False)] = Verify.FULL
    """`full` compares a checksum of every piece of KV; `stamps` only its bookkeeping."""


class RoutingSpec(Model):
    disaggregation: Annotated[Disaggregation, Field(strict=False)] = Disaggregation.AUTO
    """Which prompts the prefill pool computes: all, none, or those where it serves the targets better."""
    prefill_unavailable: Annotated[PrefillUnavailable, Field(strict=False)] = PrefillUnavailable.FAIL
    """What happens to a request while no prefill worker is routable."""


class BudgetSpec(Model):
    max_accelerators: Annotated[int, Field(ge=1, le=MAX_REPLICAS * 64)] | None = None


class ScheduleSpec(Model):
    """A daily window, in UTC, in which mode SLO keeps more workers than `replicas.min`."""

    start: TimeOfDay
    end: TimeOfDay
    """Not included; a window that ends before it starts ends on the next day."""
    days: Annotated[tuple[Annotated[Weekday, Field(strict=False)], ...], Field(max_length=7, strict=False)] = ()
    """On which it starts; none: every day."""
    prefill: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """At least so many prefill workers."""
    decode: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """At least so many decode workers."""

    @model_validator(mode="after")
    def _says_something(self) -> ScheduleSpec:
        if self.start == self.end:
            raise broken_rule("end", f"{self.end} is not allowed: must differ from start")
        if self.prefill is None and self.decode is None:
            raise broken_rule("prefill", "is missing: a schedule names prefill, decode or both")
        return self


class AutoscalingSpec(Model):
    mode: Annotated[ScalingMode, Field(strict=False)] = ScalingMode.SLO
    """Who sizes the pools: Baton, another autoscaler, or nobody. Quote "Off": YAML reads a bare Off as false."""
    budget: BudgetSpec = BudgetSpec()
    scale_to_zero_after: Annotated[Duration, Field(ge=60, le=7 * 86_400)] | None = None
    """Quiet time after which both pools sleep; needs `replicas.min` 0 in both."""
    schedules: Annotated[tuple[ScheduleSpec, ...], Field(max_length=16, strict=False)] = ()
    """Daily windows with more workers; pools do not sleep in them."""


class RolloutSpec(Model):
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
    type: Annotated[ServiceType, Field(strict=False)] = ServiceType.CLUSTER_IP
    port: Annotated[int, Field(ge=1, le=65_535)] = 80


class TlsSpec(Model):
    secret_name: ObjectName
    """Secret of type kubernetes.io/tls in the same namespace; a renewed certificate is taken without a restart."""


class RouteSpec(Model):
    """An HTTPRoute to the gateway's Service, where the cluster serves the Gateway API."""

    parent: ObjectName
    """Gateway that the route attaches to."""
    parent_namespace: Label | None = None
    """Its namespace; by default that of the LLMDeployment."""
    hostnames: Annotated[tuple[ObjectName, ...], Field(max_length=16, strict=False)] = ()


class LimitSpec(Model):
    max_request_duration: Annotated[Duration, Field(ge=1, le=86_400)] = 600.0


class GatewaySpec(Model):
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Per replica, sharing one port."""
    service: ServiceSpec = ServiceSpec()
    tls: TlsSpec | None = None
    route: RouteSpec | None = None
    limits: LimitSpec = LimitSpec()


class PodMetadataSpec(Model):
    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it

    @model_validator(mode="after")
    def _not_reserved(self) -> PodMetadataSpec:
        for field, keys in (("labels", self.labels), ("annotations", self.annotations)):
            for key in keys:
                domain = key.partition("/")[0] if "/" in key else ""
                if any(domain == reserved or domain.endswith(f".{reserved}") for reserved in RESERVED_METADATA):
                    raise broken_rule(f"{field}.{key}", f"not allowed: {domain} is reserved")
        return self


class DeploymentSpec(Model):
    model: ModelSpec
    slo: SloSpec = SloSpec()
    prefill: PoolSpec = PoolSpec()
    decode: PoolSpec = PoolSpec()
    kv_transfer: KvTransferSpec = KvTransferSpec()
    routing: RoutingSpec = RoutingSpec()
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    rollout: RolloutSpec = RolloutSpec()
    gateway: GatewaySpec = GatewaySpec()
    image_pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=8, strict=False)] = ()
    pod_metadata: PodMetadataSpec = PodMetadataSpec()

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
    name: DeploymentName
    namespace: Label = "default"
    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it


class LLMDeployment(Model):
    """One model served by a prefill pool, a decode pool and a gateway."""

    api_version: Annotated[Literal["baton.dev/v1alpha1"], Allowed(f"'{API_VERSION}'")]
    kind: Annotated[Literal["LLMDeployment"], Allowed(f"'{KIND}'")]
    metadata: MetadataSpec
    spec: DeploymentSpec
