"""Objects of APIs that a cluster may lack: a route of the Gateway API, an InferencePool, an autoscaler, and objects for
the Prometheus operator.

They are made where they are asked for and the server has their API. Where it has not, a condition says so.
"""

from __future__ import annotations

import re

import msgspec

from baton_control.names import gateway_name, pool_name
from baton_control.spec.api import LLMDeployment
from baton_control.worker_specs import pool_roles
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_operator.kube.object_fields import Manifest, mapping, metadata_of
from baton_operator.objects.alerts import MONITOR_API, alerts_object
from baton_operator.objects.cluster import HTTP_PORT, Owner, Platform
from baton_operator.objects.metadata import object_head, selector
from baton_wire.messages.values import Role

ROUTE_API = "gateway.networking.k8s.io/v1"
SCALER_API, POOL_GROUP = "autoscaling/v2", "inference.networking.k8s.io"
PICKER_PORT = 9002
"""The port of an endpoint picker's Service, as the inference extension's own chart has it."""
SHRINK_AFTER_S, SHRINK_EVERY_S = 300, 60
"""The autoscaler removes Pods slowly, because a stopping gateway drains for as long as a request may take."""
_LABEL_NAME = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def optional_objects(deployment: LLMDeployment, platform: Platform, owner: Owner) -> tuple[Manifest, ...]:
    """The optional objects that the deployment and the installation ask for."""
    roles = (*pool_roles(deployment), Role.GATEWAY)
    monitors = [_monitor(deployment, role, platform, owner) for role in roles] if platform.monitors else []
    alerts = [alerts_object(deployment, owner)] if platform.alerts else []
    monitors, alerts = ([_labelled(manifest, platform) for manifest in made] for made in (monitors, alerts))
    pools = (_inference_pool(deployment, owner),) if has_inference_pool(deployment, platform) else ()
    return (*_routes(deployment, platform, owner), *pools, *_autoscaler(deployment, owner), *monitors, *alerts)


def has_inference_pool(deployment: LLMDeployment, platform: Platform) -> bool:
    """True if the gateway Pods are an InferencePool: a Gateway speaks plain HTTP to the members of one."""
    return platform.inference_pool and deployment.spec.gateway.tls is None


def _inference_pool(deployment: LLMDeployment, owner: Owner) -> Manifest:
    """The pool of the gateway Pods. Workers are no members, because they serve no HTTP to clients. A Gateway that
    reaches no endpoint picker sends requests to any of the Pods, and each can answer all of them."""
    name = deployment.metadata.name
    spec: Manifest = {
        "selector": {"matchLabels": selector(deployment, Role.GATEWAY)},
        "targetPorts": [{"number": HTTP_PORT}],
        "endpointPickerRef": {"name": f"{name}-epp", "port": {"number": PICKER_PORT}, "failureMode": "FailOpen"},
    }
    return object_head(f"{POOL_GROUP}/v1", "InferencePool", name, deployment, owner, Role.GATEWAY) | {"spec": spec}


def _routes(deployment: LLMDeployment, platform: Platform, owner: Owner) -> tuple[Manifest, ...]:
    """The route from the named Gateway to the gateway's Service, or to the InferencePool. It has no time-out, because
    the gateway ends every request itself and a time-out would cut long answers."""
    route, name = deployment.spec.gateway.route, gateway_name(deployment.metadata.name)
    if route is None:
        return ()
    parents = [parent.model_dump(by_alias=True, exclude_none=True) for parent in route.parents()]
    backend: Manifest = {"name": name, "port": deployment.spec.gateway.service.port}
    if has_inference_pool(deployment, platform):
        backend = {"group": POOL_GROUP, "kind": "InferencePool", "name": deployment.metadata.name}
    timeouts = {"timeouts": {"request": "0s"}} if platform.route_timeouts else {}
    spec: Manifest = {
        "parentRefs": parents,
        **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
        "rules": [{"backendRefs": [backend], **timeouts}],
    }
    return (object_head(ROUTE_API, "HTTPRoute", name, deployment, owner, Role.GATEWAY) | {"spec": spec},)


def _autoscaler(deployment: LLMDeployment, owner: Owner) -> tuple[Manifest, ...]:
    """The autoscaler of gateways, by CPUs used and not by a share of the CPUs requested: a process uses one at most,
    whatever its Pod asks for."""
    gateway, name = deployment.spec.gateway, gateway_name(deployment.metadata.name)
    if gateway.autoscaling is None:
        return ()
    used = f"{10 * gateway.autoscaling.target_cpu * gateway.processes}m"
    slowly = {"type": "Pods", "value": 1, "periodSeconds": SHRINK_EVERY_S}
    spec: Manifest = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "minReplicas": gateway.autoscaling.min,
        "maxReplicas": gateway.autoscaling.max,
        "metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": used}}}
        ],
        "behavior": {"scaleDown": {"stabilizationWindowSeconds": SHRINK_AFTER_S, "policies": [slowly]}},
    }
    return (object_head(SCALER_API, "HorizontalPodAutoscaler", name, deployment, owner, Role.GATEWAY) | {"spec": spec},)


def parse_labels(flag: str, text: str) -> tuple[tuple[str, str], ...]:
    """Labels in a JSON object. Raises ValueError."""
    try:
        labels = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ValueError(f"{flag}: {error}") from error
    for name, value in labels.items():
        if _LABEL_NAME.fullmatch(name) is None or _LABEL_VALUE.fullmatch(value) is None:
            raise ValueError(f"{flag}: {name}={value!r} is not allowed: must be a label of Kubernetes")
    return tuple(sorted(labels.items()))


def _labelled(manifest: Manifest, platform: Platform) -> Manifest:
    """A monitor or rule with the labels by which the installation's Prometheus selects it; Baton's own win."""
    metadata = metadata_of(manifest)
    labels = {**dict(platform.monitoring_labels), **mapping(metadata["labels"])}
    return {**manifest, "metadata": {**metadata, "labels": labels}}


def _monitor(deployment: LLMDeployment, role: Role, platform: Platform, owner: Owner) -> Manifest:
    """The monitor that reads each process of a role."""
    name = deployment.metadata.name
    of_deployment = {"sourceLabels": [_deployment_of_pod()], "targetLabel": "deployment"}
    endpoint: Manifest = {
        "port": "http",
        "path": "/metrics",
        "interval": platform.monitoring_interval,
        "relabelings": [of_deployment],
    }
    if role is Role.GATEWAY and deployment.spec.gateway.tls is not None:
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}  # by address: no name to verify
    spec: Manifest = {
        "selector": {"matchLabels": selector(deployment, role)},
        "podMetricsEndpoints": [endpoint],
    }
    named = gateway_name(name) if role is Role.GATEWAY else pool_name(name, role)
    return object_head(MONITOR_API, "PodMonitor", named, deployment, owner, role) | {"spec": spec}


def _deployment_of_pod() -> str:
    """Prometheus' name of the Pods' label with their deployment."""
    return "__meta_kubernetes_pod_label_" + re.sub(r"[^a-zA-Z0-9_]", "_", DEPLOYMENT_LABEL)
