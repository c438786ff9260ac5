"""Worker Deployments as the rollout planner sees them, and its steps as numbers of replicas. Pure.

The state of a rollout is in the worker Deployments alone: their labels name role and revision. Only Deployments that
the LLMDeployment controls count, whatever the names and labels of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from baton_control.hashes import Revision
from baton_control.rollout import Group, Step
from baton_operator.kube.object_fields import Manifest, condition_of, mapping
from baton_operator.objects.cluster import Owner
from baton_operator.objects.metadata import (
    FIT_LABEL,
    ROLE_LABEL,
    ROLES_ANNOTATION,
    TEMPLATE_LABEL,
    belongs,
    roles_of,
)
from baton_operator.passes.worker_pods import PodCounts
from baton_operator.telemetry import RoutableCounts
from baton_wire.messages.values import POOL_ROLES, Role

TemplateKey = tuple[Role, str]
"""Role and template hash."""
NO_PODS: Mapping[TemplateKey, PodCounts] = {}


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """One live worker Deployment, or the part of a flexible one that serves in one pool."""

    name: str
    role: Role
    revision: Revision
    wanted: int
    """`spec.replicas`: started and not stopping."""
    existing: int
    """Pods that exist, including draining ones."""
    ready: int
    is_leaving: bool
    """True: it is deleted and waits for its Pods."""
    since: str = ""
    """Its creation time, as RFC 3339."""
    is_observed: bool = True
    """True: the counts are those of its present spec."""
    refusal: str = ""
    """Why its Pods cannot be made, such as a quota; empty: they can."""
    is_late: bool = False
    """True: its Pods did not become ready in time."""
    is_flexible: bool = False
    """True: its Pods may serve in either pool, and another set of the same name has the other pool's."""

    @property
    def key(self) -> TemplateKey:
        return self.role, self.revision.template


def worker_sets(
    deployments: Iterable[Manifest], owner: Owner, pod_counts: Mapping[TemplateKey, PodCounts] = NO_PODS
) -> tuple[WorkerSet, ...]:
    """The worker Deployments that belong to `owner`, by name; other objects are left out. `pod_counts`: their Pods; the
    status of a Deployment of flexible workers does not count its Pods by role."""
    parts = (part for deployment in deployments for part in _worker_sets(deployment, owner, pod_counts))
    return tuple(sorted(parts, key=lambda worker_set: worker_set.name))


def rollout_groups(
    sets: Iterable[WorkerSet],
    routable: RoutableCounts | None,
    pod_counts: Mapping[TemplateKey, PodCounts] = NO_PODS,
    linked: frozenset[TemplateKey] | None = None,
) -> tuple[Group, ...]:
    """The worker sets as the rollout's planner sees them. `routable` None: no gateway has reported yet, so that the
    counts are unknown; a template that gateways do not name has no routable worker. `linked`: the templates of which a
    gateway has linked a worker, None: unknown; workers of another template serve nothing, though they are ready."""
    return tuple(
        _group(
            worker_set,
            routable,
            pod_counts.get(worker_set.key, PodCounts()),
            serves_nothing=routable is not None and linked is not None and worker_set.key not in linked,
        )
        for worker_set in sets
        if not worker_set.is_leaving
    )


def replicas_after(sets: Iterable[WorkerSet], step: Step) -> dict[tuple[Role, Revision], int]:
    """The numbers of replicas after a step, by role and template, of the sets that it changes. Raises ValueError below
    zero."""
    now = {
        (worker_set.role, worker_set.revision): worker_set.wanted for worker_set in sets if not worker_set.is_leaving
    }
    after: dict[tuple[Role, Revision], int] = {}
    for change in step.changes:
        key = (change.role, change.revision)
        after[key] = after.get(key, now.get(key, 0)) + change.workers
        if after[key] < 0:
            raise ValueError(f"{change.role} {change.revision} would have {after[key]} workers")
    return after


def find_finished(sets: Iterable[WorkerSet], wanted: Mapping[Role, Revision]) -> tuple[WorkerSet, ...]:
    """Worker Deployments of other revisions without workers, which may be deleted. Both parts of a flexible Deployment
    have to be empty; one part represents it."""
    parts = tuple(sets)
    done = [part for part in parts if _is_finished(part, wanted)]
    by_name = {part.name: part for part in done}
    busy = {part.name for part in parts if part not in done}
    return tuple(part for name, part in by_name.items() if name not in busy)


def _is_finished(worker_set: WorkerSet, wanted: Mapping[Role, Revision]) -> bool:
    return (
        not worker_set.is_leaving
        and worker_set.is_observed
        and worker_set.revision != wanted[worker_set.role]
        and worker_set.wanted == 0
        and worker_set.existing == 0
    )


def _worker_sets(
    deployment: Manifest, owner: Owner, pod_counts: Mapping[TemplateKey, PodCounts]
) -> Iterator[WorkerSet]:
    metadata, spec, status = (mapping(deployment.get(part)) for part in ("metadata", "spec", "status"))
    labels = mapping(metadata.get("labels"))
    role, template, fit = (labels.get(label) for label in (ROLE_LABEL, TEMPLATE_LABEL, FIT_LABEL))
    if role not in {*POOL_ROLES, None} or not isinstance(template, str) or not isinstance(fit, str):
        return
    if not belongs(deployment, owner):
        return
    whole = WorkerSet(
        name=str(metadata.get("name")),
        role=Role.PREFILL if role is None else Role(str(role)),
        revision=Revision(fit, template),
        wanted=_count(spec, "replicas", 1),
        existing=_count(status, "replicas", 0),
        ready=_count(status, "readyReplicas", 0),
        is_leaving="deletionTimestamp" in metadata,
        since=str(metadata.get("creationTimestamp") or ""),
        is_observed=_count(status, "observedGeneration", 0) >= _count(metadata, "generation", 0),
        refusal=refusal(deployment),
        is_late=condition_of(status, "Progressing").get("reason") == "ProgressDeadlineExceeded",
    )
    if role is not None:
        yield whole
        return
    pools = {role: pod_counts.get((role, template), PodCounts()) for role in POOL_ROLES}
    roles = roles_of(mapping(metadata.get("annotations")).get(ROLES_ANNOTATION))
    if roles is None:  # somebody removed it: running Pods keep their roles, and new ones start as their template says
        decode = min(pools[Role.DECODE].existing - pools[Role.DECODE].leaving, whole.wanted)
        roles = {Role.PREFILL: whole.wanted - decode, Role.DECODE: decode}
    for role, counts in pools.items():
        yield replace(
            whole,
            role=role,
            wanted=roles[role],
            existing=counts.existing - counts.leaving,
            ready=counts.ready,
            is_flexible=True,
        )


def refusal(deployment: Manifest) -> str:
    """Why the Pods of a Deployment cannot be made; empty: they can."""
    failure = condition_of(mapping(deployment.get("status")), "ReplicaFailure")
    return str(failure.get("message") or failure.get("reason")) if failure.get("status") == "True" else ""


def _group(worker_set: WorkerSet, routable: RoutableCounts | None, pods: PodCounts, *, serves_nothing: bool) -> Group:
    is_failing = pods.failing > 0 and pods.failing >= pods.ready
    return Group(
        worker_set.role,
        worker_set.revision,
        worker_set.wanted,
        None if routable is None else min(routable.get(worker_set.key, 0), worker_set.wanted),
        failing=is_failing or (worker_set.is_late and not pods.placing and pods.ready == 0),
        unschedulable=pods.unschedulable,
        idle=worker_set.wanted if serves_nothing else max(worker_set.wanted - pods.ready, 0),
        since=worker_set.since,
    )


def _count(part: Manifest, field: str, absent: int) -> int:
    """A count that the API server leaves out when it is zero, or for `replicas` of a spec when it is one."""
    value = part.get(field, absent)
    return value if isinstance(value, int) else absent
