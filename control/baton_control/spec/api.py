"""The LLMDeployment: every field with its type, default and bounds, and the rules that span fields.

It is the only source of the schema: manifests, live objects, CRDs and the reference page follow from it. Values are
parsed (seconds, bytes), never text; `manifest` parses files. The docstring of a field is its public description.
"""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.count_or_percent import CountOrPercent
from baton_control.spec.gateway_fields import GatewaySpec
from baton_control.spec.pools import MAX_REPLICAS, NO_WORKERS, PoolSpec
from baton_control.spec.quantities import (
    AnnotationValue,
    DeploymentName,
    Duration,
    Label,
    LabelValue,
    ObjectName,
    PullSecretName,
    QualifiedName,
    Rate,
    TimeOfDay,
    Weekday,
)
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, RESERVED_LABELS, refuse_reserved
from baton_control.spec.resource_quantities import Allowed
from baton_control.spec.served_model import ModelSpec
from baton_control.spec.telemetry_fields import TelemetrySpec
from baton_control.spec.tensor_parallel import RANKS_NEED_TCP

API_VERSION = "baton.dev/v1alpha1"
KIND = "LLMDeployment"


class TransportMode(enum.StrEnum):
    """KV transport."""

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
    """Latency target."""
    percentile: Annotated[float, Field(ge=50, le=99.9)] = 95.0
    """Percent of the requests that have to meet the target."""


class SloSpec(Model):
    """Latency targets that the pools are sized for."""

    ttft: TargetSpec = TargetSpec.model_construct(target=0.5)
    """Target for the time to the first token (TTFT), which sizes the prefill pool."""
    tpot: TargetSpec = TargetSpec.model_construct(target=0.05)
    """Target for the time per output token after the first (TPOT), which sizes the decode pool."""


class KvTransferSpec(Model):
    """Transfer of KV from prefill to decode workers."""

    transport: Annotated[TransportMode, Field(strict=False)] = TransportMode.AUTO
    """Transport for KV. `UCX` uses RDMA if the nodes have it. `Auto`: UCX if both workers support it, else TCP."""
    min_bandwidth: Annotated[Rate, Field(ge=1e6, le=1e13)] | None = None
    """Minimum measured bandwidth; slower lanes set TransportVerified to False. Unset: no minimum."""
    verify: Annotated[Verify, Field(strict=False)] = Verify.FULL
    """Verification of transfers: `full` compares a checksum of every piece of KV, `stamps` only its metadata."""


class RoutingSpec(Model):
    """Routing of requests to workers."""

    disaggregation: Annotated[Disaggregation, Field(strict=False)] = Disaggregation.AUTO
    """Prompts that the prefill pool computes: `Always` all, `Never` none, `Auto` those that meet the targets better."""
    keep_answers: bool = True
    """Lets prefill workers also decode an answer if that meets the targets better. Only with `Auto`."""
    prefill_unavailable: Annotated[PrefillUnavailable, Field(strict=False)] = PrefillUnavailable.DECODE_LOCALLY
    """Effect of having no prefill worker: decode workers compute prompts, or requests fail with 503 after 10 s."""


class BudgetSpec(Model):
    """Budget of both pools together."""

    max_accelerators: Annotated[int, Field(ge=1, le=MAX_REPLICAS * 64)] | None = None
    """Maximum number of accelerators of both pools together. Unset: only `replicas.max` limits them."""


class ScheduleSpec(Model):
    """Daily window, in UTC, in which mode SLO keeps more workers than `replicas.min`."""

    start: TimeOfDay
    """Start of the window, in UTC."""
    end: TimeOfDay
    """End of the window, exclusive, in UTC. An end before the start is on the next day."""
    days: Annotated[tuple[Annotated[Weekday, Field(strict=False)], ...], Field(max_length=7, strict=False)] = ()
    """Days on which the window starts. Empty: every day."""
    prefill: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Minimum number of prefill workers in the window. Unset: `replicas.min`."""
    decode: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] | None = None
    """Minimum number of decode workers in the window. Unset: `replicas.min`."""

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
    """Autoscaling of the pools."""

    mode: Annotated[ScalingMode, Field(strict=False)] = ScalingMode.SLO
    """Owner of the pools' sizes: Baton, another autoscaler, or none. Quote "Off": YAML reads a bare Off as false."""
    budget: BudgetSpec = BudgetSpec()
    """Budget of both pools together."""
    scale_to_zero_after: Annotated[Duration, Field(ge=60, le=7 * 86_400)] | None = None
    """Time without requests after which both pools scale to zero. Needs `replicas.min` 0 in both. Unset: never."""
    scale_to_zero: ScaleToZeroSpec | None = None
    """Ignored, and removed in the next version: pools sleep after `scaleToZeroAfter`."""
    schedules: Annotated[tuple[ScheduleSpec, ...], Field(max_length=16, strict=False)] = ()
    """Daily windows with more workers, in which the pools do not scale to zero."""
    flips: bool = False
    """Lets workers change pools without a restart. The pools must be equal except for `replicas`."""

    @property
    def is_kept_awake(self) -> bool:
        """True while Baton keeps the pools awake only because it ignores `scale_to_zero`."""
        is_slo = self.mode is ScalingMode.SLO
        return is_slo and self.scale_to_zero is not None and self.scale_to_zero_after is None


class RolloutSpec(Model):
    """Rollout of a new worker template."""

    max_surge: CountOrPercent = 1
    """Maximum number of workers above the desired number, per pool, during a rollout. A percentage rounds up."""
    max_unavailable: CountOrPercent = 0
    """Maximum number of workers below the desired number, per pool, in a rollout. A percentage rounds down."""
    canary: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of a pool that a new template gets before the rollout holds. 0: it does not hold."""
    paused: bool = False
    """Pauses rollouts, so that new templates wait. The pools are still sized, and an empty pool still starts."""

    @model_validator(mode="after")
    def _can_move(self) -> RolloutSpec:
        if {self.max_surge, self.max_unavailable} <= {0, "0%"}:
            raise broken_rule(
                "maxSurge", f"{self.max_surge} is not allowed: must be at least 1 while maxUnavailable is 0"
            )
        return self


class PodMetadataSpec(Model):
    """Labels and annotations of all Pods of the deployment."""

    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the Pods, besides Baton's own. The installation lists the allowed keys that have a domain."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the Pods. The installation lists the allowed keys."""

    @model_validator(mode="after")
    def _not_reserved(self) -> PodMetadataSpec:
        refuse_reserved("labels", self.labels, RESERVED_LABELS)
        refuse_reserved("annotations", self.annotations, RESERVED_ANNOTATIONS)
        return self


class PullSecretSpec(Model):
    """Secret for pulling the images."""

    name: ObjectName
    """Name of a Secret in the same namespace."""


class DeploymentSpec(Model):
    """Desired state: the model, its latency targets and its workers."""

    model: ModelSpec
    slo: SloSpec = SloSpec()
    prefill: PoolSpec = PoolSpec()
    """Pool of prefill workers, which compute prompts. The TTFT target sizes it."""
    decode: PoolSpec = PoolSpec()
    """Pool of decode workers, which generate answers. The TPOT target sizes it."""
    kv_transfer: KvTransferSpec = KvTransferSpec()
    routing: RoutingSpec = RoutingSpec()
    autoscaling: AutoscalingSpec = AutoscalingSpec()
    rollout: RolloutSpec = RolloutSpec()
    gateway: GatewaySpec = GatewaySpec()
    telemetry: TelemetrySpec = TelemetrySpec()
    image_pull_secrets: Annotated[tuple[PullSecretName, ...], Field(max_length=8, strict=False)] = ()
    """Names of Secrets in the same namespace for pulling the images. Empty: those that the installation names."""
    pull_secrets: Annotated[tuple[PullSecretSpec, ...], Field(max_length=8, strict=False)] = ()
    """The same as objects, as Pods have them. Only without `imagePullSecrets`."""
    pod_metadata: PodMetadataSpec = PodMetadataSpec()
    operator_class: Label | None = None
    """Class of the operator that manages this deployment (its --class). Unset: the operator without a class."""

    @model_validator(mode="after")
    def _pull_secrets_in_normal_form(self) -> DeploymentSpec:
        """The same spec with its pull secrets as names."""
        if not self.pull_secrets:
            return self
        if self.image_pull_secrets:
            raise broken_rule("pullSecrets", "not allowed: must be absent while imagePullSecrets is given")
        names = tuple(secret.name for secret in self.pull_secrets)
        return self.model_copy(update={"image_pull_secrets": names, "pull_secrets": ()})

    @model_validator(mode="after")
    def _decode_pool_generates(self) -> DeploymentSpec:
        """The same spec; without the task Generate its decode pool has no workers, and is like the prefill pool."""
        if self.model.generates:
            return self
        if "decode" in self.model_fields_set and self.decode.replicas != NO_WORKERS:
            raise broken_rule("decode", "not allowed: must be absent while model.tasks has no Generate")
        if self.autoscaling.flips:
            raise broken_rule("autoscaling.flips", "true is not allowed: there is one pool without the task Generate")
        return self.model_copy(update={"decode": self.prefill.model_copy(update={"replicas": NO_WORKERS})})

    @model_validator(mode="after")
    def _pools_sleep_together(self) -> DeploymentSpec:
        prefill, decode = self.prefill.replicas.min, self.decode.replicas.min
        if self.model.generates and (prefill == 0) != (decode == 0):
            field = "prefill.replicas.min" if prefill == 0 else "decode.replicas.min"
            raise broken_rule(field, "0 is not allowed: must be 0 in both pools or in neither, they sleep together")
        if self.autoscaling.scale_to_zero_after is not None and prefill > 0:
            raise broken_rule("autoscaling.scaleToZeroAfter", "not allowed: needs replicas.min 0 in both pools")
        return self

    @model_validator(mode="after")
    def _flipping_pools_have_one_type(self) -> DeploymentSpec:
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
    def _ranks_on_accelerators_need_tcp(self) -> DeploymentSpec:
        ranked = any(pool.accelerator and pool.tensor_parallel > 1 for pool in (self.prefill, self.decode))
        if ranked and self.kv_transfer.transport is TransportMode.UCX:
            raise broken_rule("kvTransfer.transport", f"UCX is not allowed: {RANKS_NEED_TCP}")
        return self

    @model_validator(mode="after")
    def _decode_offloads_on_purpose(self) -> DeploymentSpec:
        engine = self.decode.engine
        if self.model.generates and engine.offloaded_layers is not None and not engine.offload_decode:
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
    """Standard object metadata, as far as a manifest may set it."""

    name: DeploymentName
    """Name of the deployment, and prefix of the names of its objects."""
    namespace: Label = "default"
    """Namespace of all objects; on a laptop, part of the deployment's name."""
    labels: Annotated[dict[QualifiedName, LabelValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the LLMDeployment itself."""
    annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=64)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the LLMDeployment itself."""


class LLMDeployment(Model):
    """One model served by a prefill pool, a decode pool and a gateway."""

    api_version: Annotated[Literal["baton.dev/v1alpha1"], Allowed(f"'{API_VERSION}'")]
    """Version of the API schema of this object."""
    kind: Annotated[Literal["LLMDeployment"], Allowed(f"'{KIND}'")]
    """Kind of this object."""
    metadata: MetadataSpec
    spec: DeploymentSpec
