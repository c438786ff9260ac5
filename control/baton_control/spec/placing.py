"""Fields of every kind of Pod: its nodes, and the spread of equal Pods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.pod_affinity import NodeTermSpec, PodTermSpec
from baton_control.spec.quantities import LabelValue, QualifiedName


class TolerationSpec(Model):
    """Toleration of a taint."""

    key: QualifiedName
    """Key of the tolerated taint, from the installation's list."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """Comparison: `Exists` tolerates every value of the key, `Equal` the one in `value`."""
    value: LabelValue | None = None
    """Value of the tolerated taint. Only with operator `Equal`."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the tolerated taint. Unset: all effects."""

    @model_validator(mode="after")
    def _exists_has_no_value(self) -> TolerationSpec:
        if self.operator == "Exists" and self.value:
            raise broken_rule("value", "not allowed: must be absent while operator is Exists")
        return self


class NodesSpec(Model):
    """Nodes that Pods may run on."""

    node_selector: Annotated[dict[QualifiedName, LabelValue], Field(max_length=16)] = {}  # noqa: RUF012 - pydantic copies it
    """Labels that a node must have."""
    tolerations: Annotated[tuple[TolerationSpec, ...], Field(max_length=16, strict=False)] = ()
    """Taints that the Pods tolerate."""


class PlacementSpec(NodesSpec):
    """Placement of equal Pods: nodes, affinity and spread."""

    node_affinity: Annotated[tuple[NodeTermSpec, ...], Field(max_length=8, strict=False)] = ()
    """Node affinity by labels, for rules that `nodeSelector` cannot express."""
    pod_affinity: Annotated[tuple[PodTermSpec, ...], Field(max_length=8, strict=False)] = ()
    """Pods of the same namespace to be placed near to."""
    pod_anti_affinity: Annotated[tuple[PodTermSpec, ...], Field(max_length=8, strict=False)] = ()
    """Pods of the same namespace to be placed away from."""

    topology_key: QualifiedName | None = None
    """Node label over whose values the Pods are spread. Unset: they are spread over nodes."""
    spread: Literal["Preferred", "Required"] = "Preferred"
    """Strictness of the spread. `Required` leaves a Pod unscheduled rather than spread unevenly."""


def node_keys(placement: NodesSpec) -> Iterator[tuple[str, str]]:
    """Every node label that a placement names, with its path below the placement."""
    yield from ((f"nodeSelector.{key}", key) for key in placement.node_selector)
    if not isinstance(placement, PlacementSpec):
        return
    for i, node in enumerate(placement.node_affinity):
        at = f"nodeAffinity[{i}].matchExpressions"
        yield from ((f"{at}[{j}].key", expression.key) for j, expression in enumerate(node.match_expressions))
    for field, terms in (("podAffinity", placement.pod_affinity), ("podAntiAffinity", placement.pod_anti_affinity)):
        yield from ((f"{field}[{i}].topologyKey", term.topology_key) for i, term in enumerate(terms))
    if placement.topology_key is not None:
        yield "topologyKey", placement.topology_key
