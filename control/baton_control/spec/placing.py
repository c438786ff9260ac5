"""Fields that every kind of Pod has: its nodes, how equal Pods are spread, and what one asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.pod_affinity import NodeTermSpec, PodTermSpec
from baton_control.spec.quantities import CpuQuantity, LabelValue, MemoryText, QualifiedName


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


class PlacementSpec(NodesSpec):
    """Onto which nodes equal Pods go, near whom, and how they are spread."""

    node_affinity: Annotated[tuple[NodeTermSpec, ...], Field(max_length=8, strict=False)] = ()
    """Nodes by their labels, where `nodeSelector` does not say enough."""
    pod_affinity: Annotated[tuple[PodTermSpec, ...], Field(max_length=8, strict=False)] = ()
    """Pods of the same namespace that these Pods are to be near to."""
    pod_anti_affinity: Annotated[tuple[PodTermSpec, ...], Field(max_length=8, strict=False)] = ()
    """Pods of the same namespace that these Pods are to keep away from."""

    topology_key: QualifiedName | None = None
    """Pods are spread over the values of this node label; unset: over nodes."""
    spread: Literal["Preferred", "Required"] = "Preferred"
    """`Required` leaves a Pod without a node rather than spread them unevenly."""


def node_keys(placement: NodesSpec) -> Iterator[tuple[str, str]]:
    """Every label of nodes that a placement names, with its path below the placement."""
    yield from ((f"nodeSelector.{key}", key) for key in placement.node_selector)
    if not isinstance(placement, PlacementSpec):
        return
    for i, node in enumerate(placement.node_affinity):
        at = f"nodeAffinity[{i}].matchExpressions"
        yield from ((f"{at}[{j}].key", each.key) for j, each in enumerate(node.match_expressions))
    for field, pods in (("podAffinity", placement.pod_affinity), ("podAntiAffinity", placement.pod_anti_affinity)):
        yield from ((f"{field}[{i}].topologyKey", each.topology_key) for i, each in enumerate(pods))
    if placement.topology_key is not None:
        yield "topologyKey", placement.topology_key
