"""Writes the plan of a pass: records, shared objects, facades and workers; then deletes objects without a use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.hashes import Revision
from baton_operator.kube.kinds import JOBS, RECORDS, WORKERS
from baton_operator.kube.kube_api import Forbidden, Invalid
from baton_operator.kube.object_fields import Manifest, annotations_of, is_controlled, is_leaving, name_of
from baton_operator.objects.fetch_state import fetch_state, find_former_jobs
from baton_operator.objects.metadata import ROLES_ANNOTATION, roles_of
from baton_operator.passes.apply import Applied, Applier, NameTaken, desired_object
from baton_operator.passes.observe import find_finished, replicas_after
from baton_operator.passes.pass_plan import PassPlan
from baton_operator.passes.problems import PassProblem
from baton_operator.passes.rendering import Rendering
from baton_operator.passes.role_labels import RoleLabels
from baton_operator.passes.roles import assign_roles
from baton_operator.passes.serving import earliest
from baton_operator.passes.shared_objects import Ensured, SharedObjects, refusal_problem
from baton_operator.passes.snapshot import Snapshot, read_facade
from baton_operator.passes.template_records import MAX_GOOD_BYTES, find_outdated, newest_record
from baton_operator.passes.template_records import record_manifest as record_manifest
from baton_operator.passes.worker_pods import PodCounts, WorkerPod
from baton_wire.messages.values import POOL_ROLES, Role

LEAVING_S = 5.0
"""Time to the next pass while an older object of the same name is being deleted."""
_REFUSALS = (NameTaken, Forbidden, Invalid)
"""A refusal of one object is reported and keeps no other object back."""


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """The outcome of writing a plan."""

    problems: tuple[PassProblem, ...]
    """The refusals."""
    pods: tuple[WorkerPod, ...]
    """The worker Pods with the roles that they have now."""
    again_s: float | None = None
    """When the rest can be written; None: nothing is left to write."""


class PlanWriter:
    """Writes for all deployments. Raises KubeError for what has to be tried again."""

    def __init__(self, applier: Applier, roles: RoleLabels) -> None:
        self._applier, self._roles, self._shared = applier, roles, SharedObjects(applier)

    async def write(self, snapshot: Snapshot, rendering: Rendering, plan: PassPlan) -> WrittenPlan:
        record = await self._write_record(snapshot, rendering)
        if not record.may_run:
            return WrittenPlan(record.problems, snapshot.pods, record.again_s)
        shared = await self._shared.ensure(snapshot, rendering, plan.replacement, plan.held_gateway)
        problems = (*record.problems, *shared.problems, *await self._write_facades(snapshot, rendering, plan))
        if not shared.may_run:
            return WrittenPlan(problems, snapshot.pods, record.again_s)
        workers = await self._write_workers(snapshot, rendering, plan)
        await self._delete_unneeded(snapshot, rendering, plan)
        return WrittenPlan((*problems, *workers.problems), workers.pods, earliest((record.again_s, workers.again_s)))

    async def _write_record(self, snapshot: Snapshot, rendering: Rendering) -> Ensured:
        """Store the templates before anything is made from them."""
        record, good, before = rendering.record, rendering.text, newest_record(snapshot.records)
        is_same = before is not None and before.record == record
        is_noted = before is not None and (before.good == good or len(good.encode()) > MAX_GOOD_BYTES)
        is_ours = before is not None and is_controlled(snapshot.live_records[before.name], snapshot.owner.uid)
        if is_same and is_noted and is_ours:
            return Ensured(may_run=True)
        number = 1 if before is None else before.number + (not is_same)
        name = before.name if before is not None and is_same else None
        manifest = record_manifest(record, number, rendering.deployment, snapshot.owner, good, name)
        desired = desired_object(manifest)
        try:
            try:
                applied = await self._applier.ensure(desired, snapshot.owner)
            except Invalid:
                if before is None or not is_same or is_ours:
                    raise
                # Restored from a backup: the same data in other bytes, which cannot be changed.
                applied = await self._applier.replace(snapshot.live_records[before.name], desired, snapshot.owner)
        except _REFUSALS as error:
            return Ensured((refusal_problem(error),), may_run=is_same and is_ours)
        return Ensured(may_run=True, again_s=LEAVING_S if applied is Applied.LEAVING else None)

    async def _write_facades(self, snapshot: Snapshot, rendering: Rendering, plan: PassPlan) -> list[PassProblem]:
        mode = rendering.deployment.spec.autoscaling.mode
        problems = []
        for role, facade_object in rendering.pools.items():
            pool = snapshot.pools.get(role)
            facade = None if pool is None else read_facade(pool)
            try:
                await self._shared.facade(facade_object, snapshot.owner, facade, plan.pools[role].replicas, mode)
            except _REFUSALS as error:
                problems.append(refusal_problem(error))
        return problems

    async def _write_workers(self, snapshot: Snapshot, rendering: Rendering, plan: PassPlan) -> WrittenPlan:
        """Carry out the step and restore worker Deployments that somebody else edited. While the model is being
        fetched, no template gets its first worker."""
        templates = {**snapshot.templates, **rendering.pods}
        now = {(live.role, live.revision): live.wanted for live in plan.sets if not live.is_leaving}
        sizes: dict[Revision, dict[Role, int]] = {}
        for (role, revision), replicas in {**now, **replicas_after(plan.sets, plan.step)}.items():
            sizes.setdefault(revision, {})[role] = replicas
        problems: list[PassProblem] = []
        moved: dict[str, WorkerPod] = {}
        again_s = None
        for revision, counts in sizes.items():
            # A revision whose template is lost with its record can only be removed.
            known = [role for role in counts if (role, revision) in templates]
            roles = [role for role in known if plan.fetch.is_done or (role, revision) in now]
            try:
                if roles and all((role, revision) in templates for role in POOL_ROLES):
                    all_roles = {role: counts.get(role, 0) for role in POOL_ROLES}
                    pod = templates[roles[0], revision]
                    applied = await self._write_flexible(snapshot, rendering, revision, pod, all_roles, moved)
                else:
                    applied = Applied.UNCHANGED
                    for role in roles:
                        pod, shrinks = templates[role, revision], counts[role] < now.get((role, revision), 0)
                        desired = rendering.workers(role, revision, pod, counts[role], snapshot.owner)
                        applied = await self._applier.ensure(desired, snapshot.owner, at_version=shrinks)
            except _REFUSALS as error:
                problems.append(refusal_problem(error))
                continue
            again_s = LEAVING_S if applied is Applied.LEAVING else again_s
        pods = tuple(moved.get(pod.uid, pod) for pod in snapshot.pods)
        return WrittenPlan(tuple(problems), pods, again_s)

    async def _write_flexible(
        self,
        snapshot: Snapshot,
        rendering: Rendering,
        revision: Revision,
        pod: Manifest,
        sizes: Mapping[Role, int],
        moved: dict[str, WorkerPod],
    ) -> Applied:
        """Give the workers of a template that both pools share their sizes, and their Pods their roles; adds the Pods
        with a role to `moved`. A Pod that goes is marked before there are fewer; a Pod that flips is labelled after
        the Deployment says how many serve in each pool."""
        desired = rendering.flexible_workers(revision, pod, sizes, snapshot.owner)
        before = roles_of(annotations_of(snapshot.live_sets.get(desired.name, {})).get(ROLES_ANNOTATION))
        shrinks = before is None or any(sizes[role] < before[role] for role in POOL_ROLES)
        roles = assign_roles((pod for pod in snapshot.pods if pod.template == revision.template), sizes)
        key, owner = snapshot.key, snapshot.owner
        spares = await self._roles.write(key, owner, [assignment for assignment in roles if assignment.is_spare])
        applied = await self._applier.ensure(desired, owner, at_version=shrinks)
        staying = await self._roles.write(key, owner, [assignment for assignment in roles if not assignment.is_spare])
        moved |= spares | staying
        return applied

    async def _delete_unneeded(self, snapshot: Snapshot, rendering: Rendering, plan: PassPlan) -> None:
        """Delete empty worker Deployments, records that nothing runs from, optional objects that are not asked for any
        more and finished fetches of other models. Raises Conflict for an object that has changed since."""
        for empty in find_finished(plan.sets, plan.wanted):
            roles = POOL_ROLES if empty.is_flexible else (empty.role,)
            counts = (snapshot.pod_counts.get((role, empty.revision.template), PodCounts()) for role in roles)
            if not any(count.existing for count in counts):
                await self._applier.delete(WORKERS, snapshot.live_sets[empty.name])
        live = {live_set.revision.template for live_set in plan.sets}
        for record in find_outdated(snapshot.records, live | {revision.template for revision in plan.wanted.values()}):
            if plan.held_gateway is not None and record.name == plan.held_gateway.name:
                continue
            await self._applier.delete(RECORDS, snapshot.live_records[record.name])
        names = {(desired.resource, desired.name) for desired in rendering.standing}
        for resource, optional in snapshot.withdrawable:
            if (resource, name_of(optional)) not in names:
                await self._applier.delete(resource, optional)
        for job in snapshot.fetches:
            if plan.retry_s == 0.0 and name_of(job) == plan.fetch.job and not is_leaving(job):
                await self._applier.delete(JOBS, job)  # the next pass makes it anew
        for job in find_former_jobs(rendering.objects, snapshot.fetches):
            # One that runs would hold the lock of the cache, and go on with settings that were mended since.
            if plan.fetch.is_done or not fetch_state(job).is_done:
                await self._applier.delete(JOBS, job)
