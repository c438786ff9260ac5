"""All objects of a deployment: those that follow from its spec alone, and the worker Deployments of the rollout."""

from __future__ import annotations

from collections.abc import Mapping

from baton_control.hashes import Revision
from baton_control.names import flexible_name, gateway_name, pool_name, workers_name
from baton_control.spec.api import API_VERSION, LLMDeployment
from baton_control.worker_specs import pool_roles, pool_spec
from baton_operator.kube.kinds import POLICIES
from baton_operator.kube.object_fields import Manifest
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.fetch import fetch_objects
from baton_operator.objects.link_keys import key_secret
from baton_operator.objects.metadata import ROLES_ANNOTATION, object_head, roles_text, selector
from baton_operator.objects.network_settings import WorkloadPolicies
from baton_operator.objects.optional import optional_objects
from baton_operator.objects.pod_additions import account_fields, with_annotations
from baton_operator.objects.pods import LOAD_S, TEMPLATE_VERSION, WorkerTemplate, gateway_template
from baton_operator.objects.reachability import gateway_service, policies, pool_service
from baton_operator.schema.llm_pool import POOL_KIND
from baton_wire.messages.values import POOL_ROLES, Role

PROGRESS_VERSION = 4
"""Images of this template version and later report the progress of a fetch."""
LINK_S = 5
"""Seconds after which a ready worker counts: by then gateways have found and linked it."""


def standing_objects(
    deployment: LLMDeployment,
    platform: Platform,
    owner: Owner,
    masters: Mapping[str, bytes],
    gateway_pod: Manifest | None = None,
    *,
    version: int = TEMPLATE_VERSION,
    refetch: str = "",
) -> tuple[Manifest, ...]:
    """Everything but worker Deployments and pool facades, in the order of creation: policies and accounts before Pods.

    `gateway_pod` is the recorded template of the gateway; None: rendered now. `version` is the template version of the
    images, `refetch` the mark of the last requested fetch. Raises UnsupportedError for what this version cannot run.
    """
    fetch = fetch_objects(deployment, platform, owner, tells_progress=version >= PROGRESS_VERSION, refetch=refetch)
    pools = pool_roles(deployment)
    roles = (*pools, Role.GATEWAY)
    has_policies = platform.network.workloads is WorkloadPolicies.MANAGED
    return (
        *(policies(deployment, platform, owner) if has_policies else ()),
        *(manifest for manifest in fetch if has_policies or manifest["kind"] != POLICIES.kind),
        *(_account(deployment, role, platform, owner) for role in roles),
        key_secret(deployment, owner, masters),
        *(pool_service(deployment, role, owner) for role in pools),
        gateway_service(deployment, owner),
        *(_budget(deployment, role, owner) for role in roles),
        *optional_objects(deployment, platform, owner),
        _gateway(deployment, gateway_pod or gateway_template(deployment, platform), owner),
    )


def worker_deployment(deployment: LLMDeployment, template: WorkerTemplate, replicas: int, owner: Owner) -> Manifest:
    """The workers of one template. Its name is the template's hash; only `replicas` ever changes."""
    return workers_of(deployment, template.spec.role, template.spec.revision, template.pod, replicas, owner)


def workers_of(
    deployment: LLMDeployment, role: Role, revision: Revision, pod: Manifest, replicas: int, owner: Owner
) -> Manifest:
    """The worker Deployment of a recorded template."""
    name = workers_name(deployment.metadata.name, role, revision.template)
    head = object_head("apps/v1", "Deployment", name, deployment, owner, role, revision)
    pods = selector(deployment, role, revision.template)
    return head | {"spec": _workers(pods, pod, replicas, _strategy(replicas))}


def flexible_workers_of(
    deployment: LLMDeployment, revision: Revision, pod: Manifest, roles: Mapping[Role, int], owner: Owner
) -> Manifest:
    """The flexible workers of one template, with the number for each role. The role is not in the Deployment's
    selector, so that a Pod's role can change."""
    name = flexible_name(deployment.metadata.name, revision.template)
    head = object_head("apps/v1", "Deployment", name, deployment, owner, None, revision)
    pods = selector(deployment, None, revision.template)
    spec = _workers(pods, pod, sum(roles.values()), _strategy(min(roles.values())))
    return with_annotations(head, {ROLES_ANNOTATION: roles_text(roles)}) | {"spec": spec}


def _workers(pods: Mapping[str, str], pod: Manifest, replicas: int, strategy: Manifest) -> Manifest:
    return {
        "replicas": replicas,
        "revisionHistoryLimit": 0,
        "progressDeadlineSeconds": LOAD_S + 600,
        "minReadySeconds": LINK_S,
        "strategy": strategy,
        "selector": {"matchLabels": dict(pods)},
        "template": pod,
    }


def _strategy(replicas: int) -> Manifest:
    """The update strategy for restarts by `kubectl`, and for edits by others, which Baton reverts; Baton itself never
    edits a template. Of several workers one is missing meanwhile. A single worker gets its successor first, which needs
    room for both."""
    surge, missing = (1, 0) if replicas <= 1 else (0, 1)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": missing}}


def pool_facade(deployment: LLMDeployment, role: Role, owner: Owner, replicas: int | None = None) -> Manifest:
    """The pool's `/scale` facade, without `replicas` where a writer other than the operator sets them."""
    name = deployment.metadata.name
    spec: Manifest = {"deployment": name, "role": role.value}
    if replicas is not None:
        spec["replicas"] = replicas
    return object_head(API_VERSION, POOL_KIND, pool_name(name, role), deployment, owner, role) | {"spec": spec}


def _name(deployment: LLMDeployment, role: Role) -> str:
    name = deployment.metadata.name
    return gateway_name(name) if role is Role.GATEWAY else pool_name(name, role)


def _account(deployment: LLMDeployment, role: Role, platform: Platform, owner: Owner) -> Manifest:
    account = object_head("v1", "ServiceAccount", _name(deployment, role), deployment, owner, role)
    if role in POOL_ROLES:
        account = with_annotations(account, pool_spec(deployment, role).service_account_annotations)
    return account | account_fields(platform)


def _budget(deployment: LLMDeployment, role: Role, owner: Owner) -> Manifest:
    """The budget of a role: one voluntary disruption at a time over all revisions. Pods that are not ready never block
    a drain."""
    spec: Manifest = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(deployment, role)},
    }
    name = _name(deployment, role)
    return object_head("policy/v1", "PodDisruptionBudget", name, deployment, owner, role) | {"spec": spec}


def _gateway(deployment: LLMDeployment, pod: Manifest, owner: Owner) -> Manifest:
    """The gateway's Deployment, without replicas where an autoscaler writes them (`passes/shared_objects.py`)."""
    given = deployment.spec.gateway
    spec: Manifest = {
        **({"replicas": given.replicas} if given.autoscaling is None else {}),
        "revisionHistoryLimit": 2,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": selector(deployment, Role.GATEWAY)},
        "template": pod,
    }
    name = gateway_name(deployment.metadata.name)
    return object_head("apps/v1", "Deployment", name, deployment, owner, Role.GATEWAY) | {"spec": spec}
