"""One pass over one LLMDeployment: from what is known to what is wanted, and the status that says how it stands.

`snapshot → parse → size → templates → rollout step → standing objects → facades → workers → status`. A pass acts only
on what it reads then; what went before does not matter. It stops at the first sign that it knows too little (Conflict,
no answer) and is run again; a refusal of one object is reported and does not keep the others back.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baton_control.errors import ManifestError, NotAllowedError, UnsupportedError
from baton_control.hashes import Revision
from baton_control.names import Key, gateway_name
from baton_control.rollout import Group, Limits, Step, Wanted, next_step
from baton_control.sizing.decision.scaling import HoldSizing, PoolNow, Sized, Sizing, SizingRequest
from baton_control.sizing.metrics import SizingMetrics
from baton_control.spec.api import LLMDeployment, ScalingMode
from baton_operator.kube.kinds import OPTIONAL, POLICIES, RECORDS, SERVICES
from baton_operator.kube.kube_api import Forbidden, Invalid, KubeApi, Resource
from baton_operator.kube.object_fields import annotations_of, is_controlled, mapping, uid_of
from baton_operator.objects.cluster import Manifest, Platform
from baton_operator.objects.fetch import FetchState, fetch_of, former_jobs
from baton_operator.objects.fetch_progress import PROGRESS_S
from baton_operator.objects.metadata import ROLES_ANNOTATION, roles_of
from baton_operator.passes import accelerators
from baton_operator.passes.apply import Applied, Applier, NameTaken, wish
from baton_operator.passes.cleanup import Cleanup
from baton_operator.passes.deployment_status import View, status_of
from baton_operator.passes.diagnosis import diagnose, fetching_pods, idle_scaler, waiting_job
from baton_operator.passes.drain_replacement import DrainReplacement, places_of, succession
from baton_operator.passes.ingress import unreached
from baton_operator.passes.object_events import AGAIN_S, ObjectEvents
from baton_operator.passes.observe import WorkerSet, replicas_after
from baton_operator.passes.pool_size import Facade, Plan, plans, standing
from baton_operator.passes.problems import Trouble
from baton_operator.passes.refused_env import still_there
from baton_operator.passes.refused_spec import RefusedSpec, refused, unreadable
from baton_operator.passes.rendering import Inputs, Rendering, Renderings, inputs_of, last_good
from baton_operator.passes.role_labels import RoleLabels
from baton_operator.passes.roles import after_flips, assigned, serving_as_labelled, sizes_after_flips
from baton_operator.passes.shared_objects import SharedObjects, trouble
from baton_operator.passes.snapshot import Caches, Snapshot, facade, snapshot
from baton_operator.passes.status_events import Turn
from baton_operator.passes.status_writer import StatusWriter
from baton_operator.passes.template_records import MAX_GOOD_BYTES, Record, newest
from baton_operator.passes.template_records import manifest as record_manifest
from baton_operator.passes.worker_pods import PodCounts, Readiness, placement_s
from baton_operator.telemetry import GatewayReport, Telemetry
from baton_wire.messages.values import POOL_ROLES, Role

log = logging.getLogger(__name__)
TROUBLE_S, SIZING_S, LEAVING_S, PAIRS_S = 30.0, 10.0, 5.0, 1.0
BELIEVED_S = 30.0
"""So long after the start the last status is believed about what gateways have not told yet."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What the installation decides for all passes."""

    platform: Callable[[], Platform]
    masters: Callable[[], Mapping[str, bytes]]
    """The operator's master keys as they are now: they rotate."""
    served: Callable[[str], frozenset[Resource]] = lambda namespace: frozenset(OPTIONAL)
    """Which of the optional kinds the API server has, and may be read in a namespace."""


@dataclass(slots=True)
class Pass:
    """What one pass gathers on its way."""

    seen: Snapshot
    made: Rendering
    troubles: list[Trouble]
    notes: list[str]
    again_s: float | None = None
    refusal: Trouble | None = None
    """Why the present spec is not carried out; the pass goes on from the last good one."""

    @property
    def deployment(self) -> LLMDeployment:
        return self.made.deployment

    def again_in(self, seconds: float) -> None:
        self.again_s = seconds if self.again_s is None else min(seconds, self.again_s)


class Reconciler:
    """Passes for all deployments. `now` is the wall clock, for what people read; `clock` is monotonic, for waiting."""

    def __init__(  # noqa: PLR0913
        self,
        api: KubeApi,
        caches: Caches,
        installation: Installation,
        *,
        sizing: Sizing | None = None,
        telemetry: Telemetry | None = None,
        measured: SizingMetrics | None = None,
        now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
        emptying: Callable[[], frozenset[str] | None] = lambda: None,
    ) -> None:
        self._caches, self._installation, self._clock, self._now = caches, installation, clock, now
        self._sizing, self._telemetry, self._measured = sizing or HoldSizing(), telemetry, measured
        self._applier = Applier(api, caches)
        self._shared = SharedObjects(self._applier)
        self._statuses = StatusWriter(api, self._applier, now, clock)
        self._cleanup = Cleanup(self._applier)
        self._events = ObjectEvents(api, clock)
        self._roles = RoleLabels(self._applier, telemetry, clock)
        self._readiness = Readiness()
        self._renderings = Renderings()
        self._emptying = emptying
        """Nodes that are being emptied; None: nodes cannot be read."""
        self._uids: dict[Key, str] = {}
        self._doubled: dict[str, frozenset[Role]] = {}
        """By uid: which roles had one more when a pass last told of it."""
        self._began = clock()
        self._told: dict[str, tuple[int, bool]] = {}
        """By uid: writes when a pass last came to its status, and whether it put it off."""

    async def reconcile(self, key: Key) -> float | None:
        """One pass; returns in how many seconds another is due, None when only an event can make one necessary.

        Raises KubeError when the pass has to be repeated.
        """
        seen = snapshot(key, self._caches)
        self._forget_former(key, None if seen is None else seen.owner.uid)
        if seen is None:
            self._statuses.forget(key)
            self._roles.forget(key)
            if self._measured is not None:
                self._measured.forget(key)
            return None
        served = self._installation.served(key.namespace)
        given = inputs_of(seen, self._installation.platform(), self._installation.masters(), served)
        made, refusal = self._rendered(given)
        if made is not None and refusal is None:
            return await self._pass(Pass(seen, made, [], list(made.notes)))
        assert refusal is not None, "what is not rendered was refused"
        log.info("%s: %s", key, refusal)
        good = last_good(given)
        kept = self._renderings.last(seen.owner) if good is None else self._rendered(good)[0]
        if kept is not None:
            return await self._pass(Pass(seen, kept, [], list(kept.notes), refusal=refusal.trouble))
        await self._statuses.write(seen, refused(refusal, seen.before, seen.generation, self._now()))
        return None

    def _rendered(self, given: Inputs) -> tuple[Rendering | None, RefusedSpec | None]:
        """What follows from a spec, or why nothing does."""
        try:
            return self._renderings.of(given), None
        except NotAllowedError as error:
            return None, RefusedSpec("NotAllowed", error.problems)
        except ManifestError as error:
            return None, RefusedSpec("InvalidSpec", error.problems)
        except UnsupportedError as error:
            return None, RefusedSpec("Unsupported", (error.problem,))

    async def hold(self, key: Key, why: str) -> None:
        """Say that nothing is done for a deployment, as its namespace cannot be read. Raises KubeError."""
        seen = snapshot(key, self._caches)
        if seen is not None:
            await self._statuses.write(seen, unreadable(why, seen.before, seen.generation, self._now()))

    async def stay_out(self, key: Key, other: str) -> None:
        """Say by an Event that another operator has the namespace; nothing else is written there."""
        seen = snapshot(key, self._caches)
        if seen is not None:
            why = f"the operator {other} has this namespace: a second one of its class does nothing here"
            await self._statuses.tell(seen, [Turn(True, "ClaimedElsewhere", why)])

    async def _pass(self, this: Pass) -> float | None:
        deployment, record = this.deployment, this.made.record
        objects = this.made.objects
        fetch = fetch_of(objects, this.seen.fetches)
        heard, routable, doubtful = self._routable(this)
        groups = _groups(this.seen, routable)
        believed = self._believed(this, heard)
        plan, sized = self._sizes(this, groups)
        found = self._succession(this, plan)
        wanted = {
            role: Wanted(record.rendered[role].revision, plan[role].workers + (role in found.doubled))
            for role in POOL_ROLES
        }
        sizes = sizes_after_flips(wanted, groups)
        if sizes is not None:
            this.seen = replace(this.seen, sets=after_flips(this.seen.sets, wanted, sizes))
            groups = _groups(this.seen, routable)
        seen, rollout = this.seen, deployment.spec.rollout
        limits = Limits(rollout.max_surge, rollout.max_unavailable, rollout.canary)
        step = next_step(wanted, _doubted(groups, doubtful), limits, rollout.paused)

        may_run = await self._record(this, record)
        if may_run:
            ensured = await self._shared.ensure(seen, this.made, found)
            this.troubles += ensured.troubles
            await self._facades(this, plan)
            may_run = ensured.may_run
        if may_run:
            await self._workers(this, step, may_start=fetch.is_done)
            await self._cleanup.run(seen, {role: each.revision for role, each in wanted.items()})
            await self._cleanup.withdrawn(seen, this.made.standing)
            if fetch.is_done:
                await self._cleanup.jobs(former_jobs(objects, seen.fetches))
        self._roles.order(seen.key, this.seen.pods, heard)
        has_refusal = bool(this.troubles)
        this.troubles += await self._diagnosis(this, fetch)
        this.troubles += [this.refusal] if this.refusal is not None else []

        view = View(
            deployment=deployment,
            generation=seen.generation,
            wanted={role: each.revision for role, each in wanted.items()},
            plans=plan,
            sized=sized,
            sets=tuple(each for each in seen.sets if not each.is_leaving),
            groups=groups if believed is None else _groups(seen, believed),
            step=step,
            gateways_ready=seen.gateways_ready,
            leaving_gateways=seen.leaving_gateways,
            heard=heard,
            troubles=tuple(this.troubles),
            notes=tuple(this.notes),
            is_reachable=_reachable(self._caches, this.made),
            wakes=self._wakes(seen, heard),
            refused_env=self._refused_env(this),
        )
        if self._has_just_acted(seen):
            this.again_in(0.0)  # what came of it is seen then, and told once
            return this.again_s
        wait_s = await self._statuses.write(seen, status_of(view, seen.before, self._now()))
        if wait_s is not None:
            this.again_in(wait_s)
        restored = self._applier.restored.pop(seen.owner.uid, [])
        told = [f"{each} was edited or deleted by somebody else and is back" for each in restored]
        await self._statuses.tell(seen, [Turn(False, "Restored", each, closes=True) for each in told])
        await self._tell_succession(seen, found)
        await self._statuses.write_pools(seen, deployment, plan)
        if has_refusal:
            this.again_in(TROUBLE_S)
        return this.again_s

    async def _diagnosis(self, this: Pass, fetch: FetchState) -> tuple[Trouble, ...]:
        """What keeps Pods back; Events are asked for only about those that do not say it themselves."""
        seen, now = this.seen, self._now()
        said, again_s = await self._events.about_pods(seen.live_pods, now)
        job = waiting_job(seen, fetch)
        if job is not None:
            told = await self._events.about(job)
            said = {**said, uid_of(job): told} if told is not None else said
            again_s = AGAIN_S
        if again_s is not None:
            this.again_in(again_s)
        for pod in () if fetch.is_done else fetching_pods(seen)[-1:]:
            heard = await self._events.about(pod)
            said = {**said, uid_of(pod): heard} if heard is not None else said
            this.again_in(PROGRESS_S)
        scaler = idle_scaler(seen, now)
        for _, left_s in (*unreached(seen, now), *([] if scaler is None else [scaler])):
            if left_s > 0:
                this.again_in(left_s)
        return diagnose(seen, this.deployment, fetch, said, now)

    def _forget_former(self, key: Key, uid: str | None) -> None:
        """What is kept by uid goes with the deployment; another one of the same name has its own."""
        former = self._uids.pop(key, None)
        if uid is not None:
            self._uids[key] = uid
        if former is not None and former != uid:
            self._doubled.pop(former, None)
            self._told.pop(former, None)
            self._applier.forget(former)
            self._readiness.forget(former)

    def _has_just_acted(self, seen: Snapshot) -> bool:
        """Whether objects were written since the last status; twice in a row it does not count, so that a status is
        written even while somebody fights over an object."""
        uid = seen.owner.uid
        writes = self._applier.writes.get(uid, 0)
        before, self._told[uid] = self._told.get(uid, (0, False)), (writes, False)
        acted = writes != before[0] and not before[1]
        if acted:
            self._told[uid] = (writes, True)
        return acted

    def _routable(
        self, this: Pass
    ) -> tuple[GatewayReport | None, Mapping[tuple[Role, str], int] | None, frozenset[tuple[Role, str]]]:
        """What gateways tell; without a link to them, what readiness lets assume while any gateway is there, and about
        which templates it leaves a doubt."""
        seen = this.seen
        if self._telemetry is not None:
            heard = self._telemetry.heard(seen.key, seen.owner.uid, this.deployment)
            if heard is not None and heard.pairs is not None and heard.pairs.may_lack_soon:
                this.again_in(PAIRS_S)
            if heard is None or heard.routable is None:
                return heard, None, frozenset()
            return heard, serving_as_labelled(heard.routable, seen.sets, seen.pods, heard.flexible), frozenset()
        assumed = self._readiness.routable(seen.owner.uid, seen.pods, _published(seen), self._clock())
        if assumed.again_at is not None:
            this.again_in(max(assumed.again_at - self._clock(), 0.1))
        return None, assumed.routable if seen.gateways_ready else None, assumed.doubtful

    def _believed(self, this: Pass, heard: GatewayReport | None) -> Mapping[tuple[Role, str], int] | None:
        """For the status alone, while gateways have not found this process yet: what it said last, of workers that are
        still ready. A change of the operator changes nothing about what is served. None: there is no need, or it is too
        long ago."""
        left_s = self._began + BELIEVED_S - self._clock()
        pools = (this.seen.before.prefill, this.seen.before.decode)
        was_known = all(pool is not None and pool.routable is not None for pool in pools)
        if self._telemetry is None or heard is not None or left_s <= 0 or not was_known:
            return None
        this.again_in(left_s)
        return {
            key: min(count, this.seen.crews.get(key, PodCounts()).ready) for key, count in _published(this.seen).items()
        }

    def _wakes(self, seen: Snapshot, heard: GatewayReport | None) -> bool | None:
        """Whether a request can wake pools that sleep."""
        if self._telemetry is None:
            return False
        if heard is not None:
            return True
        slept = any(each.reason == "ScaledToZero" and each.status == "True" for each in seen.before.conditions)
        return True if slept and self._clock() < self._began + BELIEVED_S else None

    def _refused_env(self, this: Pass) -> tuple[str, ...]:
        """Variables of templates in use that the installation refuses by now."""
        records = (this.made.record, *(each.record for each in this.seen.records))
        live = [each.revision.template for each in this.seen.sets if each.wanted or each.existing]
        return still_there(records, live, self._installation.platform().pod_policy)

    def _sizes(self, this: Pass, groups: tuple[Group, ...]) -> tuple[dict[Role, Plan], Sized | None]:
        seen, deployment = this.seen, this.deployment
        facades: dict[Role, Facade] = {role: facade(pool) for role, pool in seen.pools.items()}
        statuses = {Role.PREFILL: seen.before.prefill, Role.DECODE: seen.before.decode}
        published = {role: None if pool is None else pool.desired for role, pool in statuses.items()}
        running = {role: sum(group.workers for group in groups if group.role is role) for role in POOL_ROLES}
        before = standing(deployment, facades, published, running)
        now = {
            role: PoolNow(
                running[role],
                _sum_routable(groups, role),
                placement_s(seen.pods, role),
                *accelerators.others(deployment, role, groups, {**_live_templates(seen), **this.made.pods}),
            )
            for role in POOL_ROLES
        }
        sized: Sized | None = None
        if deployment.spec.autoscaling.mode is ScalingMode.SLO:
            pools = {role: replace(now[role], workers=before[role]) for role in POOL_ROLES}
            epoch_s = self._now().timestamp()
            reporting = deployment.spec.gateway.replicas_at(seen.gateways_ready)
            request = SizingRequest(seen.key, deployment, pools, seen.before.sizing_memory, epoch_s, reporting)
            sized = self._sizing.decide(request)
            if self._telemetry is not None:
                this.again_in(SIZING_S)
        found = plans(deployment, facades, before, sized)
        if self._measured is not None and sized is not None:
            self._measured.saw(seen.key, sized, now)
        elif self._measured is not None:
            self._measured.saw_pools(seen.key, {role: found[role].workers for role in POOL_ROLES}, now)
        return found, sized

    def _succession(self, this: Pass, plan: Mapping[Role, Plan]) -> DrainReplacement:
        """What is done for pools and gateways of one; an autoscaler's gateways are its own."""
        gateway = this.deployment.spec.gateway
        counts = {role: plan[role].workers for role in POOL_ROLES}
        counts |= {Role.GATEWAY: gateway.replicas_at(0)} if gateway.autoscaling is None else {}
        found = succession(counts, places_of(this.seen.live_pods), self._emptying(), self._now())
        if not this.deployment.spec.autoscaling.flips and not any(each.is_flexible for each in this.seen.sets):
            return found
        # Kubernetes counts what a budget lets go by the Deployments of its Pods, and these have Pods of both pools.
        usual = {role: max(counts[role] - 1, 0) for role in POOL_ROLES}
        return replace(found, least=usual | dict(found.least))

    async def _tell_succession(self, seen: Snapshot, found: DrainReplacement) -> None:
        before, self._doubled[seen.owner.uid] = self._doubled.get(seen.owner.uid, frozenset()), found.doubled
        begun = sorted(found.doubled - before)
        said = "the node of the only {} is being emptied: a second one is started"
        await self._statuses.tell(seen, [Turn(False, "SuccessorStarted", said.format(each), each) for each in begun])

    async def _record(self, this: Pass, record: Record) -> bool:
        """Store the templates before anything is made from them. Returns whether they are stored."""
        seen = this.seen
        before, good = newest(seen.records), this.made.text
        is_same = before is not None and before.record == record
        is_noted = before is not None and (before.good == good or len(good.encode()) > MAX_GOOD_BYTES)
        is_ours = before is not None and is_controlled(seen.live_records[before.name], seen.owner.uid)
        if is_same and is_noted and is_ours:
            return True
        number = 1 if before is None else before.number + (not is_same)
        name = before.name if before is not None and is_same else None
        wanted = wish(record_manifest(record, number, this.deployment, seen.owner, good, name))
        try:
            try:
                applied = await self._applier.ensure(wanted, seen.owner)
            except Invalid:
                if before is None or not is_same or is_ours:
                    raise
                # Restored from a backup: the same data in other bytes, which cannot be changed.
                await self._applier.delete(RECORDS, seen.live_records[before.name])
                self._caches[RECORDS].gone(seen.key.namespace, before.name)
                applied = await self._applier.ensure(wanted, seen.owner)
        except (NameTaken, Forbidden, Invalid) as error:
            this.troubles.append(trouble(error))
            return is_same and is_ours
        if applied is Applied.LEAVING:
            this.again_in(LEAVING_S)
        return True

    async def _facades(self, this: Pass, plan: Mapping[Role, Plan]) -> None:
        for role in POOL_ROLES:
            live = this.seen.pools.get(role)
            try:
                await self._shared.facade(
                    this.made.pools[role], this.seen.owner, None if live is None else facade(live), plan[role].replicas,
                    this.deployment.spec.autoscaling.mode,
                )  # fmt: skip
            except (NameTaken, Forbidden, Invalid) as error:
                this.troubles.append(trouble(error))

    async def _workers(self, this: Pass, step: Step, may_start: bool) -> None:
        """Carry out the step; restore worker Deployments that somebody edited. Without `may_start` no template gets its
        first worker: there is no model for it yet."""
        seen = this.seen
        after = replicas_after(seen.sets, step)
        pods = {**_live_templates(seen), **this.made.pods}
        now = {(each.role, each.revision): each.wanted for each in seen.sets if not each.is_leaving}
        wanted = {**now, **after}
        for (role, revision), replicas in wanted.items():
            pod = pods.get((role, revision))
            if pod is None or not (may_start or (role, revision) in now):
                continue  # of an unknown template: nothing but its removal can be asked for, and a record is lost
            try:
                if all((each, revision) in pods for each in POOL_ROLES):
                    if role is POOL_ROLES[0] or (POOL_ROLES[0], revision) not in wanted:
                        sizes = {each: wanted.get((each, revision), 0) for each in POOL_ROLES}
                        applied = await self._flexible_workers(this, revision, pod, sizes)
                else:
                    made = this.made.workers(role, revision, pod, replicas, seen.owner)
                    shrinks = replicas < now.get((role, revision), 0)
                    applied = await self._applier.ensure(made, seen.owner, at_version=shrinks)
            except (NameTaken, Forbidden, Invalid) as error:
                this.troubles.append(trouble(error))
                continue
            if applied is Applied.LEAVING:
                this.again_in(LEAVING_S)

    async def _flexible_workers(
        self, this: Pass, revision: Revision, pod: Manifest, sizes: Mapping[Role, int]
    ) -> Applied:
        """Make the workers of a template that both pools share be so many, and give their Pods their roles. Who goes is
        marked before there are fewer; who flips is labelled after it was written down that somebody does."""
        seen, made = this.seen, this.made.flexible_workers(revision, pod, sizes, this.seen.owner)
        before = roles_of(annotations_of(seen.live_sets.get(made.name, {})).get(ROLES_ANNOTATION))
        shrinks = before is None or any(sizes[role] < before[role] for role in POOL_ROLES)
        roles = assigned((each for each in seen.pods if each.template == revision.template), sizes)
        found = await self._roles.write(seen.key, seen.owner, [each for each in roles if each.is_spare])
        applied = await self._applier.ensure(made, seen.owner, at_version=shrinks)
        found |= await self._roles.write(seen.key, seen.owner, [each for each in roles if not each.is_spare])
        this.seen = replace(seen, pods=tuple(found.get(each.uid, each) for each in seen.pods))
        return applied


def _published(seen: Snapshot) -> dict[tuple[Role, str], int]:
    """Routable workers as the status has them, by role and template hash."""
    pools = ((Role.PREFILL, seen.before.prefill), (Role.DECODE, seen.before.decode))
    return {
        (role, each.revision): each.routable or 0
        for role, pool in pools
        for each in (pool.revisions if pool is not None else ())
    }


def _reachable(caches: Caches, made: Rendering) -> bool | None:
    """Whether clients reach the gateways, and these the workers (`View.is_reachable`), whoever made the objects."""
    gateway = gateway_name(made.deployment.metadata.name)
    wanted = next(each for each in made.standing if each.resource == SERVICES and each.name == gateway)
    live = caches[SERVICES].get(wanted.namespace, gateway)
    asked = mapping(wanted.body.get("spec")).get("selector")
    if live is None or mapping(live.get("spec")).get("selector") != asked:
        return False
    policies = [each for each in made.standing if each.resource == POLICIES]
    return True if all(caches[POLICIES].get(each.namespace, each.name) for each in policies) else None


def _groups(seen: Snapshot, routable: Mapping[tuple[Role, str], int] | None) -> tuple[Group, ...]:
    return tuple(_group(each, seen.crews, routable) for each in seen.sets if not each.is_leaving)


def _group(
    each: WorkerSet, crews: Mapping[tuple[Role, str], PodCounts], routable: Mapping[tuple[Role, str], int] | None
) -> Group:
    key = (each.role, each.revision.template)
    crew = crews.get(key, PodCounts())
    known = None if routable is None else min(routable.get(key, 0), each.wanted)
    is_failing = crew.failing > 0 and crew.failing >= crew.ready
    return Group(
        each.role,
        each.revision,
        each.wanted,
        known,
        failing=is_failing or (each.is_late and not crew.placing and crew.ready == 0),
        unschedulable=crew.unschedulable,
        idle=max(each.wanted - crew.ready, 0),
        since=each.since,
    )


def _doubted(groups: tuple[Group, ...], doubtful: frozenset[tuple[Role, str]]) -> tuple[Group, ...]:
    """For the planner: where there is a doubt, nothing is known, and nothing is stopped."""
    return tuple(
        replace(group, routable=None) if (group.role, group.revision.template) in doubtful else group
        for group in groups
    )


def _sum_routable(groups: tuple[Group, ...], role: Role) -> int | None:
    counts = [group.routable for group in groups if group.role is role]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _live_templates(seen: Snapshot) -> dict[tuple[Role, Revision], Manifest]:
    """What the worker Deployments have: of a template whose record is lost nothing else is left."""
    live = {each.name: mapping(seen.live_sets[each.name].get("spec")) for each in seen.sets}
    return {(each.role, each.revision): mapping(live[each.name].get("template")) for each in seen.sets}
