"""From live objects to what the rollout planner sees, and from its step back to numbers of replicas. Pure.

The state of a rollout is in the worker Deployments alone: their labels name role and revision. Only Deployments that
the LLMDeployment controls count: one of the same name and labels with another owner is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from baton_control.hashes import Revision
from baton_control.rollout import Group, Step
from baton_operator.objects.cluster import Manifest, Owner
from baton_operator.objects.metadata import FIT_LABEL, ROLE_LABEL, TEMPLATE_LABEL, belongs
from baton_wire.messages.values import POOL_ROLES, Role

RoutableCounts = Mapping[tuple[Role, str], int]
"""Routable workers by role and template hash, as the gateways tell."""


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """One live worker Deployment."""

    name: str
    role: Role
    revision: Revision
    wanted: int
    """`spec.replicas`: started and not told to stop."""
    existing: int
    """Pods that exist, also those that are still being drained."""
    ready: int
    is_leaving: bool
    """Deleted, and waiting for its Pods."""
    since: str = ""
    """When it was made, as RFC 3339."""
    is_observed: bool = True
    """Whether the counts are those of its present spec."""
    refusal: str = ""
    """Why Pods of it cannot be made, such as a quota; empty: they can."""
    is_late: bool = False
    """Its Pods did not become ready in time."""


def worker_sets(deployments: Iterable[Manifest], owner: Owner) -> tuple[WorkerSet, ...]:
    """The worker Deployments that belong to `owner`, by name. Objects that are not worker Deployments are left out."""
    found = (_worker_set(each, owner) for each in deployments)
    return tuple(sorted((each for each in found if each is not None), key=lambda each: each.name))


def groups(sets: Iterable[WorkerSet], routable: RoutableCounts | None) -> tuple[Group, ...]:
    """What the planner sees. `routable` None: no gateway has told yet, so that nothing is known; a template that the
    gateways do not name has no routable worker."""
    return tuple(
        Group(each.role, each.revision, each.wanted, _routable(each, routable)) for each in sets if not each.is_leaving
    )


def replicas_after(sets: Iterable[WorkerSet], step: Step) -> dict[tuple[Role, Revision], int]:
    """The replicas that a step asks for, of those templates alone that it changes. Raises ValueError below zero."""
    now = {(each.role, each.revision): each.wanted for each in sets if not each.is_leaving}
    after: dict[tuple[Role, Revision], int] = {}
    for change in step.changes:
        key = (change.role, change.revision)
        after[key] = after.get(key, now.get(key, 0)) + change.workers
        if after[key] < 0:
            raise ValueError(f"{change.role} {change.revision} would have {after[key]} workers")
    return after


def finished(sets: Iterable[WorkerSet], wanted: Mapping[Role, Revision]) -> tuple[WorkerSet, ...]:
    """Worker Deployments of other revisions without any worker left: they may be deleted."""
    return tuple(
        each
        for each in sets
        if not each.is_leaving
        and each.is_observed
        and each.revision != wanted[each.role]
        and each.wanted == 0
        and each.existing == 0
    )


def _worker_set(deployment: Manifest, owner: Owner) -> WorkerSet | None:
    metadata, spec, status = (_mapping(deployment.get(part)) for part in ("metadata", "spec", "status"))
    labels = _mapping(metadata.get("labels"))
    role, template, fit = (labels.get(label) for label in (ROLE_LABEL, TEMPLATE_LABEL, FIT_LABEL))
    if role not in set(POOL_ROLES) or not isinstance(template, str) or not isinstance(fit, str):
        return None
    if not belongs(deployment, owner):
        return None
    return WorkerSet(
        name=str(metadata.get("name")),
        role=Role(str(role)),
        revision=Revision(fit, template),
        wanted=_count(spec, "replicas", 1),
        existing=_count(status, "replicas", 0),
        ready=_count(status, "readyReplicas", 0),
        is_leaving="deletionTimestamp" in metadata,
        since=str(metadata.get("creationTimestamp") or ""),
        is_observed=_count(status, "observedGeneration", 0) >= _count(metadata, "generation", 0),
        refusal=refusal(deployment),
        is_late=condition(deployment, "Progressing").get("reason") == "ProgressDeadlineExceeded",
    )


def condition(manifest: Manifest, kind: str) -> Manifest:
    """A condition of a live object; empty when it is not set."""
    found = _mapping(manifest.get("status")).get("conditions")
    entries = found if isinstance(found, list) else []
    return next((each for each in map(_mapping, entries) if each.get("type") == kind), {})


def refusal(deployment: Manifest) -> str:
    """Why the Pods of a Deployment cannot be made; empty: they can."""
    failure = condition(deployment, "ReplicaFailure")
    return str(failure.get("message") or failure.get("reason")) if failure.get("status") == "True" else ""


def _routable(each: WorkerSet, routable: RoutableCounts | None) -> int | None:
    if routable is None:
        return None
    return min(routable.get((each.role, each.revision.template), 0), each.wanted)


def _mapping(value: object) -> Manifest:
    return value if isinstance(value, dict) else {}


def _count(part: Manifest, field: str, absent: int) -> int:
    """A count that the API server leaves out when it is zero, or for `replicas` of a spec when it is one."""
    value = part.get(field, absent)
    return value if isinstance(value, int) else absent
