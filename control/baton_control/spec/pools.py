"""The fields of `spec.prefill` and `spec.decode`: one pool of equal workers."""

from __future__ import annotations

import enum
from typing import Annotated

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.engine_sizes import EngineSpec
from baton_control.spec.placing import PlacementSpec, ResourceSpec
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

MAX_REPLICAS = 1024


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


class AcceleratorType(enum.StrEnum):
    """Accelerators whose speed is known before a step was seen."""

    H200 = "H200"
    H100 = "H100"
    A100 = "A100"


NodeLabels = Annotated[dict[QualifiedName, LabelValue], Field(max_length=8)]


class AlternativeSpec(Model):
    """Another type of accelerator that a pool may compute on instead."""

    resource: ResourceName
    """Extended resource of the node that each rank of a worker takes one of."""
    type: Annotated[AcceleratorType, Field(strict=False)]
    """What it is; types of a pool differ."""
    cost_per_hour: Annotated[float, Field(ge=0, le=100_000)]
    """What one of them costs an hour, in the currency of the others."""
    node_selector: NodeLabels = {}  # noqa: RUF012 - pydantic copies it
    """Labels that its nodes have, beside `placement.nodeSelector`; with `resource` they tell the types apart."""


class AcceleratorSpec(Model):
    """What a pool computes on."""

    resource: ResourceName
    """Extended resource of the node that each rank of a worker takes one of."""
    type: Annotated[AcceleratorType, Field(strict=False)] | None = None
    """What it is, for the first guess of its speed; unset: an H100, until steps were seen."""
    cost_per_hour: Annotated[float, Field(ge=0, le=100_000)] | None = None
    """What one of them costs an hour, in a currency of your own; told with each decision. Unset: no cost is told."""
    node_selector: NodeLabels = {}  # noqa: RUF012 - pydantic copies it
    """Labels that its nodes have, beside `placement.nodeSelector`."""
    alternatives: Annotated[tuple[AlternativeSpec, ...], Field(max_length=3, strict=False)] = ()
    """Types that mode SLO may choose instead, on a cluster, when they keep the targets for less. All have a price."""

    @model_validator(mode="after")
    def _can_be_compared(self) -> AcceleratorSpec:
        if not self.alternatives:
            return self
        for field, value in (("type", self.type), ("costPerHour", self.cost_per_hour)):
            if value is None:
                raise broken_rule(field, "is missing: alternatives are compared by it")
        types = [self.type, *(each.type for each in self.alternatives)]
        if len(set(types)) < len(types):
            raise broken_rule("alternatives", "not allowed: types must differ, also from the accelerator's own")
        own = (self.resource, *sorted(self.node_selector.items()))
        nodes = [own, *((each.resource, *sorted(each.node_selector.items())) for each in self.alternatives)]
        if len(set(nodes)) < len(nodes):
            raise broken_rule("alternatives", "not allowed: each type needs a resource or a nodeSelector of its own")
        return self


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
    arguments: Annotated[tuple[ArgumentSpec, ...], Field(max_length=16, strict=False)] = ()
    """Flags of workers that have no field of their own; a worker that does not know one does not start."""
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=8, strict=False)] = ()
    """Volumes that workers get beside Baton's own."""
    shared_memory: MemoryText | None = None
    """Size of /dev/shm, which counts towards the memory of the Pod; unset: the container runtime's, often 64Mi."""
    hugepages: HugepagesSpec | None = None
    """Huge pages of each worker; unset: none."""
    service_account_annotations: Annotated[dict[QualifiedName, AnnotationValue], Field(max_length=8)] = {}  # noqa: RUF012 - pydantic copies it
    """Annotations of the workers' ServiceAccount; the installation lists which. Workers that start later have them."""

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
            ("arguments", [each.name for each in self.arguments]),
            ("volumes", [each.name for each in self.volumes]),
            ("volumes", [each.mount_path for each in self.volumes]),
        ):
            if len(set(found)) < len(found):
                raise broken_rule(field, "not allowed: names and mount paths must differ")
        return self

    @model_validator(mode="after")
    def _not_reserved(self) -> PoolSpec:
        refuse_reserved("serviceAccountAnnotations", self.service_account_annotations, RESERVED_ANNOTATIONS)
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
