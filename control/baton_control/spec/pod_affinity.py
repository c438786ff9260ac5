"""Node and Pod affinity, as in Kubernetes but within one namespace.

A term with a weight is preferred, one without is required. Kubernetes has a list for each; here it is one list.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import LabelValue, QualifiedName

Weight = Annotated[int, Field(ge=1, le=100)]
VALUES = "entries with operator In and NotIn, one whole number with Gt and Lt, and none with Exists and DoesNotExist"


class NodeExpressionSpec(Model):
    """Requirement on a label of a node."""

    key: QualifiedName
    """Key of the node label, from the installation's list."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    """Comparison of the label with `values`."""
    values: Annotated[tuple[LabelValue, ...], Field(max_length=16, strict=False)] = ()
    """Values: at least one for `In` and `NotIn`, one integer for `Gt` and `Lt`, none for the other operators."""

    @model_validator(mode="after")
    def _compares_with_what_it_has(self) -> NodeExpressionSpec:
        values = self.values
        if self.operator in ("In", "NotIn"):
            fits = len(values) > 0
        elif self.operator in ("Gt", "Lt"):
            fits = len(values) == 1 and values[0].isascii() and values[0].isdecimal()
        else:
            fits = not values
        if not fits:
            raise broken_rule("values", f"{list(values)} is not allowed: must be {VALUES}")
        return self


class NodeTermSpec(Model):
    """Node affinity term, which matches nodes that meet all its requirements."""

    weight: Weight | None = None
    """Weight of the preference for these nodes. Unset: a node must match one of the terms without a weight."""
    match_expressions: Annotated[tuple[NodeExpressionSpec, ...], Field(min_length=1, max_length=8, strict=False)]
    """Requirements on the labels of a node; all have to be met."""


class PodTermSpec(Model):
    """Pod affinity term, which matches Pods of the same namespace by their labels."""

    weight: Weight | None = None
    """Weight of the preference. Unset: the term is required."""
    match_labels: Annotated[dict[QualifiedName, LabelValue], Field(min_length=1, max_length=8)]
    """Labels of the matching Pods, such as baton.dev/role: prefill."""
    topology_key: QualifiedName
    """Node label that defines near: nodes with the same value, such as of kubernetes.io/hostname."""
