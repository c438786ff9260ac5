"""How many gateways there are, where an autoscaler says so. Pure.

A field that its only owner leaves out of an apply falls back to its default: handing `replicas` over to an autoscaler
by leaving them out alone would end all gateways but one. So the scaler's manager takes them first, as they are.
"""

from __future__ import annotations

from baton_control.spec.gateway_fields import GatewaySpec
from baton_operator.kube.object_fields import annotations_of, integer, is_leaving, mapping, metadata_of, uid_of
from baton_operator.objects.cluster import Manifest, Owner
from baton_operator.objects.metadata import belongs
from baton_operator.passes.apply import DesiredObject
from baton_operator.passes.drift import APPLIED


def handed_over(wanted: DesiredObject, live: Manifest | None, gateway: GatewaySpec, owner: Owner) -> Manifest | None:
    """What the scaler's manager has to apply to the gateway's live Deployment before it is made as `wanted`; None:
    nothing. An autoscaler stands still at zero and counts from its floor on, so that fewer are never left, nor where
    the cluster has no autoscalers."""
    if gateway.autoscaling is None or live is None or is_leaving(live) or not belongs(live, owner):
        return None
    replicas = integer(mapping(live.get("spec")).get("replicas")) or 0
    is_as_applied = annotations_of(live).get(APPLIED) == wanted.digest
    if is_as_applied and replicas >= gateway.autoscaling.min:
        return None
    metadata: Manifest = {"name": wanted.name, "namespace": wanted.namespace, "uid": uid_of(live)}
    metadata["resourceVersion"] = metadata_of(live).get("resourceVersion")
    spec: Manifest = {"replicas": max(replicas, gateway.autoscaling.min)}
    kind = {"apiVersion": wanted.resource.api_version, "kind": wanted.resource.kind}
    return {**kind, "metadata": metadata, "spec": spec}
