"""The nodes that are being emptied: cordoned, or tainted by what removes nodes. Nothing else is kept of nodes."""

from __future__ import annotations

from collections.abc import Callable

from baton_operator.kube.kinds import NODES
from baton_operator.kube.kube_api import Change, Listing, WatchEvent
from baton_operator.kube.object_fields import Manifest, mapping, mappings, name_of

EMPTYING_TAINTS = frozenset(
    {
        "node.kubernetes.io/unschedulable",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "karpenter.sh/disruption",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "kubernetes.azure.com/scalesetpriority-eviction",
    }
)
"""Taints of kubectl cordon, the cluster autoscaler, Karpenter, and clouds that take spot nodes back."""


class Nodes:
    """The set of nodes that are being emptied, fed by an informer. `on_change` is called when the set changes."""

    resource = NODES

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.emptying: frozenset[str] | None = None
        """By name; None: nodes were never read."""

    def apply_list(self, listing: Listing, namespace: str | None) -> None:
        """Apply a whole list."""
        self._set(frozenset(_name(node) for node in listing.items if is_emptying(node)))

    def apply_event(self, event: WatchEvent) -> None:
        """Apply an event of a watch."""
        if event.change is Change.BOOKMARK or self.emptying is None:
            return
        stays_in = event.change is not Change.DELETED and is_emptying(event.object)
        name = _name(event.object)
        self._set(self.emptying | {name} if stays_in else self.emptying - {name})

    def _set(self, emptying: frozenset[str]) -> None:
        is_new, self.emptying = emptying != self.emptying, emptying
        if is_new:
            self._on_change()


def is_emptying(node: Manifest) -> bool:
    spec = mapping(node.get("spec"))
    taints = {str(taint.get("key")) for taint in mappings(spec.get("taints"))}
    return spec.get("unschedulable") is True or not EMPTYING_TAINTS.isdisjoint(taints)


def _name(node: Manifest) -> str:
    return name_of(node)
