"""The fields of `spec.prefill` and `spec.decode`: one pool of equal workers."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.engine_sizes import EngineSpec
from baton_control.spec.placing import PlacementSpec
from baton_control.spec.pod_options import ArgumentSpec, EnvSpec, HugepagesSpec, VolumeSpec
from baton_control.spec.quantities import (
    AnnotationValue,
    Label,
    LabelValue,
    MemoryText,
    ObjectName,
    QualifiedName,
    ResourceName,
)
from baton_control.spec.reserved_keys import RESERVED_ANNOTATIONS, refuse_reserved
from baton_control.spec.resources import ResourceSpec
from baton_control.spec.tensor_parallel import DEGREES, ONE_OF_DEGREES, Degree

MAX_REPLICAS = 1024


class ReplicaSpec(Model):
    """Bounds on the number of workers of a pool."""

    min: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Fewest workers. 0 in both pools lets them sleep (`autoscaling.scaleToZeroAfter`)."""
    max: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    """Maximum number of workers, in every scaling mode."""

    @model_validator(mode="after")
    def _ordered(self) -> ReplicaSpec:
        if self.min > self.max:
            raise broken_rule("min", f"{self.min} is not allowed: must be at most replicas.max, which is {self.max}")
        return self


NO_WORKERS = ReplicaSpec.model_construct(min=0, max=0)
"""The decode pool of a deployment without one."""


class AcceleratorType(enum.StrEnum):
    """Accelerator types with a performance model, so that sizing needs no measured steps."""

    H200 = "H200"
    H100 = "H100"
    A100 = "A100"


DeviceCount = Annotated[int, Field(ge=1, le=64)]
NodeLabels = Annotated[dict[QualifiedName, LabelValue], Field(max_length=8)]


class AlternativeSpec(Model):
    """Alternative accelerator type of a pool."""

    resource: ResourceName
    """Extended resource of the node; each rank of a worker takes one."""
    type: Annotated[AcceleratorType, Field(strict=False)]
    """Type of the accelerator, unique within the pool."""
    cost_per_hour: Annotated[float, Field(ge=0, le=100_000)]
    """Cost of one accelerator per hour, in the same currency as the other types'."""
    node_selector: NodeLabels = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the nodes with this type, besides `placement.nodeSelector`. With `resource` they identify the type."""


class AcceleratorSpec(Model):
    """Accelerator of a pool."""

    resource: ResourceName | None = None
    """Extended resource of the node; each rank of a worker takes one. Exactly one of this and `claim` is set."""
    claim: Label | None = None
    """Name in `resourceClaims` of the accelerator's claim, instead of `resource`. Not with `alternatives`."""
    with_: Annotated[dict[ResourceName, DeviceCount], Field(max_length=8, alias="with")] = {}  # noqa: RUF012 - pydantic copies it
    """Extended resources of a worker besides the accelerator, such as rdma/ib: 1, from the installation's list."""
    type: Annotated[AcceleratorType, Field(strict=False)] | None = None
    """Type of the accelerator, for sizing until steps were measured. Unset: sized like an H100 until then."""
    cost_per_hour: Annotated[float, Field(ge=0, le=100_000)] | None = None
    """Cost of one accelerator per hour, in any currency. Unset: sizing decisions report no cost."""
    node_selector: NodeLabels = {}  # noqa: RUF012 - pydantic copies it
    """Labels of the nodes with this accelerator, besides `placement.nodeSelector`."""
    alternatives: Annotated[tuple[AlternativeSpec, ...], Field(max_length=3, strict=False)] = ()
    """Types that mode SLO chooses instead, on a cluster, when they meet the targets at lower cost."""

    @model_validator(mode="after")
    def _is_one_device(self) -> AcceleratorSpec:
        if (self.resource is None) == (self.claim is None):
            raise broken_rule("resource", "must be given, or claim, and not both")
        if self.claim is not None and self.alternatives:
            raise broken_rule("alternatives", "not allowed: must be absent while claim is given")
        if self.resource in self.with_:
            raise broken_rule(f"with.{self.resource}", "not allowed: must differ from resource")
        for name in self.with_:
            if is_native(name):
                raise broken_rule(f"with.{name}", "not allowed: kubernetes.io is no domain of extended resources")
        return self

    @model_validator(mode="after")
    def _can_be_compared(self) -> AcceleratorSpec:
        if not self.alternatives:
            return self
        for field, value in (("type", self.type), ("costPerHour", self.cost_per_hour)):
            if value is None:
                raise broken_rule(field, "is missing: alternatives are compared by it")
        types = [self.type, *(alternative.type for alternative in self.alternatives)]
        if len(set(types)) < len(types):
            raise broken_rule("alternatives", "not allowed: types must differ, also from the accelerator's own")
        own = (self.resource, *sorted(self.node_selector.items()))
        nodes = [own, *((other.resource, *sorted(other.node_selector.items())) for other in self.alternatives)]
        if len(set(nodes)) < len(nodes):
            raise broken_rule("alternatives", "not allowed: each type needs a resource or a nodeSelector of its own")
        return self


def is_native(resource: str) -> bool:
    """True for a resource of Kubernetes itself, which is no extended resource."""
    domain = resource.partition("/")[0]
    return domain == "kubernetes.io" or domain.endswith(".kubernetes.io")


class ResourceClaimSpec(Model):
    """ResourceClaim of each worker (dynamic resource allocation)."""

    name: Label
    """Name of the claim in the Pod, unique within the pool."""
    resource_claim_template_name: ObjectName
    """ResourceClaimTemplate in the same namespace for the claim."""


class PoolSpec(Model):
    """Pool of equal workers."""

    replicas: ReplicaSpec = ReplicaSpec()
    """Bounds on the number of workers."""
    tensor_parallel: Degree = 1
    """Ranks that share the model of one worker, each a process in its Pod. Only 1 with an accelerator."""
    accelerator: AcceleratorSpec | None = None
    """Accelerator of the workers. Unset: they compute on CPUs."""
    engine: EngineSpec = EngineSpec()
    placement: PlacementSpec = PlacementSpec()
    resources: ResourceSpec = ResourceSpec()
    priority_class_name: ObjectName | None = None
    """PriorityClass of the pool's Pods, from the installation's list. Unset: the cluster's default."""
    scheduler_name: ObjectName | None = None
    """Scheduler of the pool's Pods, from the installation's list. Unset: the cluster's default."""
    runtime_class_name: ObjectName | None = None
    """RuntimeClass of the pool's Pods, from the installation's list. Unset: the node's default."""
    resource_claims: Annotated[tuple[ResourceClaimSpec, ...], Field(max_length=8, strict=False)] = ()
    """ResourceClaims of each worker (dynamic resource allocation)."""
    queue: Label | None = None
    """Kueue LocalQueue that admits the pool's Pods. Unset: they need no admission."""
    env: Annotated[tuple[EnvSpec, ...], Field(max_length=32, strict=False)] = ()
    """Environment variables for the libraries of workers, such as UCX_NET_DEVICES."""
    arguments: Annotated[tuple[ArgumentSpec, ...], Field(max_length=16, strict=False)] = ()
    """Worker flags that have no field of their own. A worker does not start with an unknown flag."""
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=8, strict=False)] = ()
    """Additional volumes of the workers."""
    shared_memory: MemoryText | None = None
    """Size of /dev/shm, which counts as memory of the Pod. Unset: the container runtime's default, often 64Mi."""
    hugepages: HugepagesSpec | None = None
    """Huge pages of each worker. Unset: none."""
    service_account_annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=8)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the workers' ServiceAccount, from the installation's list. They apply to workers started later."""

    @model_validator(mode="after")
    def _claims_differ(self) -> PoolSpec:
        names = [claim.name for claim in self.resource_claims]
        if len(set(names)) < len(names):
            raise broken_rule("resourceClaims", "not allowed: names must differ")
        return self

    @model_validator(mode="after")
    def _claims_its_accelerator(self) -> PoolSpec:
        claim = None if self.accelerator is None else self.accelerator.claim
        names = [claim_spec.name for claim_spec in self.resource_claims]
        if claim is not None and claim not in names:
            message = f"{claim} is not allowed: must be a name in resourceClaims: {', '.join(names) or 'none'}"
            raise broken_rule("accelerator.claim", message)
        return self

    @model_validator(mode="after")
    def _options_differ(self) -> PoolSpec:
        for field, names in (
            ("env", [variable.name for variable in self.env]),
            ("arguments", [argument.name for argument in self.arguments]),
            ("volumes", [volume.name for volume in self.volumes]),
            ("volumes", [volume.mount_path for volume in self.volumes]),
        ):
            if len(set(names)) < len(names):
                raise broken_rule(field, "not allowed: names and mount paths must differ")
        return self

    @model_validator(mode="after")
    def _not_reserved(self) -> PoolSpec:
        refuse_reserved("serviceAccountAnnotations", self.service_account_annotations, RESERVED_ANNOTATIONS)
        return self

    @model_validator(mode="after")
    def _has_a_degree_of_ranks(self) -> PoolSpec:
        if self.tensor_parallel not in DEGREES:
            raise broken_rule("tensorParallel", f"{self.tensor_parallel} is not allowed: must be {ONE_OF_DEGREES}")
        return self

    @model_validator(mode="after")
    def _offloading_needs_accelerators(self) -> PoolSpec:
        if self.engine.offloaded_layers is not None and self.accelerator is None:
            message = f"{self.engine.offloaded_layers} is not allowed: needs an accelerator"
            raise broken_rule("engine.offloadedLayers", message)
        if self.engine.offloaded_layers is not None and self.tensor_parallel > 1:
            message = f"{self.engine.offloaded_layers} is not allowed: needs tensorParallel 1"
            raise broken_rule("engine.offloadedLayers", message)
        return self

    @property
    def accelerators_at_min(self) -> int:
        """Accelerators that the pool takes at its smallest."""
        return self.replicas.min * self.tensor_parallel if self.accelerator else 0
