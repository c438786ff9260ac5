"""The kinds of objects that the operator works with, and the kinds that a server may lack."""

from __future__ import annotations

from baton_control.spec.api import KIND
from baton_control.spec.tenant_fields import TENANT_KIND
from baton_operator.kube.kube_api import Resource
from baton_operator.kube.labels import DEPLOYMENT_LABEL
from baton_operator.schema.llm_pool import POOL_KIND

GROUP, VERSION = "baton.dev", "v1alpha1"
DEPLOYMENTS = Resource(GROUP, VERSION, "llmdeployments", KIND)
POOLS = Resource(GROUP, VERSION, "llmpools", POOL_KIND)
TENANTS = Resource(GROUP, VERSION, "llmtenants", TENANT_KIND)
"""Watched apart from the kinds of a deployment (`passes.tenant_passes`)."""
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
WORKERS = Resource("apps", "v1", "deployments", "Deployment")
RECORDS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision")
PODS = Resource("", "v1", "pods", "Pod")
NODES = Resource("", "v1", "nodes", "Node")
SERVICES = Resource("", "v1", "services", "Service")
ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
SECRETS = Resource("", "v1", "secrets", "Secret")
EVENTS = Resource("", "v1", "events", "Event")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
JOBS = Resource("batch", "v1", "jobs", "Job")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
ROUTES = Resource("gateway.networking.k8s.io", "v1", "httproutes", "HTTPRoute")
INFERENCE_POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools", "InferencePool")
AUTOSCALERS = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
MONITORS = Resource("monitoring.coreos.com", "v1", "podmonitors", "PodMonitor")
RULES = Resource("monitoring.coreos.com", "v1", "prometheusrules", "PrometheusRule")

CUSTOM = (DEPLOYMENTS, POOLS)
"""Baton's own kinds, which kopf alone watches."""
OWNED = (WORKERS, RECORDS, PODS, SERVICES, ACCOUNTS, POLICIES, JOBS, CLAIMS)
"""The kinds that make up every deployment. Secrets are missing, because they are written and never read."""
WATCHED = (*CUSTOM, *OWNED)
"""Without these the operator cannot work."""
WITHDRAWN = (ROUTES, INFERENCE_POOLS, AUTOSCALERS, MONITORS, RULES)
"""Kinds that not every deployment has."""
OPTIONAL = (BUDGETS, *WITHDRAWN)
REMOVABLE = (*WITHDRAWN, POLICIES)
"""Kinds of which objects are deleted when they are no longer asked for."""
"""Kinds that are watched where the server has them, and otherwise left out, as a condition says."""
OWNED_SELECTOR = DEPLOYMENT_LABEL
"""Selects everything that carries the label, whatever its value."""
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in (*WATCHED, *OPTIONAL, SECRETS, LEASES, EVENTS)}


def resource_of(manifest: dict[str, object]) -> Resource:
    """The resource of a manifest's kind. Raises KeyError for a kind that the operator does not know."""
    return _BY_NAME[str(manifest["apiVersion"]), str(manifest["kind"])]


def selector_for(resource: Resource) -> str:
    """The label selector for watches of a kind: empty for Baton's own kinds and nodes, else Baton's label."""
    return "" if resource.group == GROUP or resource == NODES else OWNED_SELECTOR
