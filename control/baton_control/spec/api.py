"""The LLMDeployment: every field with its type, default and bounds, and the rules that span fields.

The only source of the schema: files, live objects, CRDs and the reference page follow from it. Values here are parsed
(seconds, bytes), never text; how a file becomes one is `manifest`'s business. What a field does is said at the field.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.gateway_fields import GatewaySpec
from baton_control.spec.pools import MAX_REPLICAS, PoolSpec
from baton_control.spec.quantities import (
    Allowed,
    AnnotationValue,
    DeploymentName,
    Duration,
    Label,
    LabelValue,
    ObjectName,
    QualifiedName,
    Rate,
    TimeOfDay,
    Weekday,
)
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, RESERVED_LABELS, refuse_reserved
from baton_control.spec.served_model import ModelSpec

API_VERSION = "baton.dev/v1alpha1"
KIND = "LLMDeployment"


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
    keep_answers: bool = True
    """With `Auto`, prefill workers also decode what they computed, where that serves the targets better."""
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


IGNORED_SCALE_TO_ZERO = "autoscaling.scaleToZero is ignored and the pools stay awake: scaleToZeroAfter lets them sleep"


class ScaleToZeroSpec(Model):
    """Ignored, and removed in the next version: `scaleToZeroAfter` lets both pools sleep."""

    cost_of_miss: Annotated[float, Field(ge=0, le=100_000)]
    """Ignored. It was the cost of a request that waits for a start."""


class AutoscalingSpec(Model):
    """Who sizes the pools, and within what."""

    mode: Annotated[ScalingMode, Field(strict=False)] = ScalingMode.SLO
    """Who sizes the pools: Baton, another autoscaler, or nobody. Quote "Off": YAML reads a bare Off as false."""
    budget: BudgetSpec = BudgetSpec()
    """What both pools together may take."""
    scale_to_zero_after: Annotated[Duration, Field(ge=60, le=7 * 86_400)] | None = None
    """Quiet time after which both pools sleep; needs `replicas.min` 0 in both. Unset: they never sleep."""
    scale_to_zero: ScaleToZeroSpec | None = None
    """Ignored, and removed in the next version: pools sleep after `scaleToZeroAfter`."""
    schedules: Annotated[tuple[ScheduleSpec, ...], Field(max_length=16, strict=False)] = ()
    """Daily windows with more workers; pools do not sleep in them."""
    flips: bool = False
    """Workers may change pools without a restart. Both pools are alike but for `replicas`."""

    @property
    def is_kept_awake(self) -> bool:
        """Whether Baton keeps the pools awake only because it ignores `scale_to_zero`."""
        is_slo = self.mode is ScalingMode.SLO
        return is_slo and self.scale_to_zero is not None and self.scale_to_zero_after is None


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


class PodMetadataSpec(Model):
    """What all Pods of the deployment are marked with."""

    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the Pods, beside Baton's own. The installation lists which keys with a domain are allowed."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Pods; the installation lists which are allowed."""

    @model_validator(mode="after")
    def _not_reserved(self) -> PodMetadataSpec:
        refuse_reserved("labels", self.labels, RESERVED_LABELS)
        refuse_reserved("annotations", self.annotations, RESERVED_ANNOTATIONS)
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
    def _who_flips_has_one_type(self) -> DeploymentSpec:
        for role, pool in (("prefill", self.prefill), ("decode", self.decode)):
            if self.autoscaling.flips and pool.accelerator is not None and pool.accelerator.alternatives:
                message = "not allowed: must be absent while autoscaling.flips is true, workers that flip are alike"
                raise broken_rule(f"{role}.accelerator.alternatives", message)
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
