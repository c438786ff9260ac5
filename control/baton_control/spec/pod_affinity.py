"""Near which nodes and Pods a Pod goes, in the terms of Kubernetes and without what another namespace could feel.

A term with a weight is a wish, one without must be met. Kubernetes has a list of either kind; here it is one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import LabelValue, QualifiedName

Weight = Annotated[int, Field(ge=1, le=100)]
VALUES = "entries with operator In and NotIn, one whole number with Gt and Lt, and none with Exists and DoesNotExist"


class NodeExpressionSpec(Model):
    """What a label of a node must be."""

    key: QualifiedName
    """Key of the node's label; the installation lists which may be."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    """How the label is compared with `values`."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=16, strict=False)] = ()
    """Entries for `In` and `NotIn`, one whole number for `Gt` and `Lt`, none for `Exists` and `DoesNotExist`."""

    @model_validator(mode="after")
    def _compares_with_what_it_has(self) -> NodeExpressionSpec:
        found = self.values
        if self.operator in ("In", "NotIn"):
            fits = len(found) > 0
        elif self.operator in ("Gt", "Lt"):
            fits = len(found) == 1 and found[0].isascii() and found[0].isdecimal()
        else:
            fits = not found
        if not fits:
            raise broken_rule("values", f"{list(found)} is not allowed: must be {VALUES}")
        return self


class NodeTermSpec(Model):
    """Nodes of which all expressions hold."""

    weight: Weight | None = None
    """How much better such nodes are; unset: one of the terms without a weight must hold."""
    match_expressions: Annotated[tuple[NodeExpressionSpec, ...], Field(min_length=1, max_length=8, strict=False)]
    """What the labels of a node must be, all of it."""


class PodTermSpec(Model):
    """Pods of the same namespace, by their labels."""

    weight: Weight | None = None
    """How much better such a place is; unset: it must be one."""
    match_labels: Annotated[dict[QualifiedName, LabelValue], Field(min_length=1, max_length=8)]
    """Labels that these Pods have, such as baton.dev/role: prefill."""
    topology_key: QualifiedName
    """Near is on nodes with the same value of this label, kubernetes.io/hostname for instance."""
