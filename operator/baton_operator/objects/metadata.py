"""Labels, selectors and owners, which identify Baton's objects and tie them to their LLMDeployment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from baton_control.hashes import Revision
from baton_control.spec.api import API_VERSION, KIND, LLMDeployment
from baton_operator.kube.labels import DEPLOYMENT_LABEL, FIELD_MANAGER
from baton_operator.kube.object_fields import Manifest, is_controlled, mappings, metadata_of
from baton_operator.objects.cluster import Owner
from baton_wire.messages.values import POOL_ROLES, Role

ROLE_LABEL = "baton.dev/role"
TEMPLATE_LABEL, FIT_LABEL = "baton.dev/template", "baton.dev/fit"
ROLES_ANNOTATION = "baton.dev/roles"
"""On a Deployment of flexible workers: the number in each pool, `prefill=2,decode=3`. It is written together with
`replicas`, which is the sum."""
_NUMBER = re.compile("[0-9]{1,6}")
FETCH_ROLE = "fetch"
"""Value of the role label on what belongs to a fetch Job."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
RESTART_ANNOTATION = "baton.dev/restart"
"""On an LLMDeployment: another value restarts its workers, as a rollout. On their Pods: its hash."""
REFETCH_ANNOTATION = "baton.dev/refetch"
"""On an LLMDeployment: another value begins the fetch of its model anew. A model that is there is not fetched again."""
ADOPT_ANNOTATION = "baton.dev/adopt"
"""On an LLMDeployment, `true`: it takes over objects with its label that have lost their owner."""


def labels(deployment: LLMDeployment, role: Role | None = None, revision: Revision | None = None) -> dict[str, str]:
    """Labels of an object of a deployment, with its role and its revision where these are given."""
    all_labels = {
        "app.kubernetes.io/name": "baton",
        "app.kubernetes.io/instance": deployment.metadata.name,
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        DEPLOYMENT_LABEL: deployment.metadata.name,
    }
    if role is not None:
        all_labels |= role_labels(role)
    if revision is not None:
        all_labels |= {TEMPLATE_LABEL: revision.template, FIT_LABEL: revision.fit}
    return all_labels


def role_labels(role: Role) -> dict[str, str]:
    """The labels for the role of a Pod, by which Services, budgets and policies select."""
    return {"app.kubernetes.io/component": role.value, ROLE_LABEL: role.value}


def roles_text(roles: Mapping[Role, int]) -> str:
    """The number for each role, as `ROLES_ANNOTATION` has it."""
    return ",".join(f"{role}={roles[role]}" for role in POOL_ROLES)


def roles_of(text: object) -> dict[Role, int] | None:
    """The number for each role in the text of `ROLES_ANNOTATION`; None: the text has another form."""
    parts = dict(part.partition("=")[::2] for part in str(text).split(","))
    counts = {role: parts.get(role.value, "") for role in POOL_ROLES}
    is_whole = len(parts) == len(counts) and all(_NUMBER.fullmatch(count) for count in counts.values())
    return {role: int(count) for role, count in counts.items()} if is_whole else None


def selector(deployment: LLMDeployment, role: Role | None = None, template: str | None = None) -> dict[str, str]:
    """Labels that select the Pods of a deployment, of one role and one template where these are given."""
    wanted = {DEPLOYMENT_LABEL: deployment.metadata.name}
    if role is not None:
        wanted[ROLE_LABEL] = role.value
    if template is not None:
        wanted[TEMPLATE_LABEL] = template
    return wanted


def selector_text(deployment: LLMDeployment, role: Role) -> str:
    """The selector of a pool's Pods of all revisions, as `/scale` wants it."""
    return ",".join(f"{key}={value}" for key, value in selector(deployment, role).items())


def belongs(manifest: Manifest, owner: Owner) -> bool:
    """True if a live object with a deployment's label belongs to the deployment: it controls the object, or it adopts
    an object without a controller."""
    if is_controlled(manifest, owner.uid):
        return True
    references = mappings(metadata_of(manifest).get("ownerReferences"))
    return owner.adopts and bool(manifest) and not any(reference.get("controller") is True for reference in references)


def object_head(
    api_version: str,
    kind: str,
    name: str,
    deployment: LLMDeployment,
    owner: Owner,
    role: Role | None = None,
    revision: Revision | None = None,
) -> Manifest:
    """The head of an object: kind, name, labels and controlling owner."""
    reference = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": deployment.metadata.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    metadata = {
        "name": name,
        "namespace": deployment.metadata.namespace,
        "labels": labels(deployment, role, revision),
        "ownerReferences": [reference],
    }
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
