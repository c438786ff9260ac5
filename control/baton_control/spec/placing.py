"""Fields that every kind of Pod has: its nodes, how equal Pods are spread, and what one asks for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
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
    """Onto which nodes equal Pods go, and how they are spread."""

    topology_key: QualifiedName | None = None
    """Pods are spread over the values of this node label; unset: over nodes."""
    spread: Literal["Preferred", "Required"] = "Preferred"
    """`Required` leaves a Pod without a node rather than spread them unevenly."""
