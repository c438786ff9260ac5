"""Reports a pass: asks why Pods are stuck, writes the status and the Events that go with it."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from baton_control.names import Key, gateway_name
from baton_control.worker_specs import pool_roles
from baton_operator.kube.kinds import POLICIES, SERVICES
from baton_operator.kube.kube_api import KubeApi
from baton_operator.kube.object_fields import mapping, uid_of
from baton_operator.objects.fetch_progress import PROGRESS_S
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.passes.announced_history import status_history
from baton_operator.passes.apply import Applier
from baton_operator.passes.deployment_status import status_of
from baton_operator.passes.diagnosis import diagnose, idle_scaler
from baton_operator.passes.fetch_failures import FetchFailure
from baton_operator.passes.fetch_problems import (
    fetching_pods,
    last_failure,
    sidecar_problem,
    waiting_claim,
    waiting_job,
)
from baton_operator.passes.ingress import find_ingress_problems
from baton_operator.passes.object_events import AGAIN_S, EventReader
from baton_operator.passes.pass_plan import PassPlan
from baton_operator.passes.pass_result import PassResult
from baton_operator.passes.plan_writer import WrittenPlan
from baton_operator.passes.pod_problems import ObjectEvent
from baton_operator.passes.problems import PassProblem
from baton_operator.passes.refused_env import find_refused_env
from baton_operator.passes.refused_spec import RefusedSpec, refused_status, unreadable_status
from baton_operator.passes.rendering import Rendering
from baton_operator.passes.serving import Serving, earliest
from baton_operator.passes.snapshot import Caches, Snapshot
from baton_operator.passes.status_events import StatusEvent
from baton_operator.passes.status_writer import StatusWriter
from baton_operator.passes.stored_history import HistoryBook, facts_of
from baton_wire.deployment_history import DeploymentHistory
from baton_wire.messages.values import Role

Announce = Callable[[Key, DeploymentHistory], None]
PROBLEM_S = 30.0
"""Time to the next pass after a refusal of an object."""


@dataclass(frozen=True, slots=True)
class SpecInForce:
    """The spec that a pass carries out."""

    rendering: Rendering
    refusal: PassProblem | None = None
    """Why a newer spec is not carried out; None: this one is the newest."""


@dataclass(frozen=True, slots=True)
class ReportMemory:
    """The memory of the reporter about a deployment, until its next pass."""

    writes: int = 0
    """Writes to its objects when a pass last came to its status."""
    was_postponed: bool = False
    """True: that status was left to the next pass, which sees the outcome of the writes."""
    replaced: frozenset[Role] = frozenset()
    """Roles whose only Pod got a successor, as an Event says already."""
    given_up: tuple[str, FetchFailure] | None = None
    """Name and last failure of the fetch Job that was given up last: the Job that begins anew has no Pods yet."""


class PassReporter:
    """Reports the passes of all deployments. Raises KubeError for a status that cannot be written."""

    def __init__(
        self,
        api: KubeApi,
        applier: Applier,
        caches: Caches,
        now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
        announce: Announce = lambda key, history: None,
    ) -> None:
        """`announce`: sends a deployment's history to its gateways."""
        self._announce = announce
        self._applier, self._caches, self._now = applier, caches, now
        self._statuses = StatusWriter(api, applier, now, clock)
        self._events = EventReader(api, clock)
        self._histories = HistoryBook(applier, clock)
        self._memories: dict[str, ReportMemory] = {}
        """By the deployment's uid."""

    async def report(
        self,
        snapshot: Snapshot,
        spec: SpecInForce,
        serving: Serving,
        plan: PassPlan,
        written: WrittenPlan,
        policy: PodPolicy,
    ) -> float | None:
        """Returns in how many seconds the next pass is due; None: only after an event."""
        causes, again_s = await self._diagnose(snapshot, spec.rendering, plan)
        refusal = () if spec.refusal is None else (spec.refusal,)
        records = (spec.rendering.record, *(stored.record for stored in snapshot.records))
        templates = [live.revision.template for live in plan.sets if live.wanted or live.existing]
        result = PassResult(
            deployment=spec.rendering.deployment,
            generation=snapshot.generation,
            wanted=plan.wanted,
            plans=plan.pools,
            sized=plan.sized,
            sets=tuple(live for live in plan.sets if not live.is_leaving),
            groups=plan.groups,
            step=plan.step,
            gateways_ready=snapshot.gateways_ready,
            leaving_gateways=snapshot.leaving_gateways,
            report=serving.report,
            problems=(*written.problems, *causes, *refusal),
            notes=(*spec.rendering.notes, *serving.notes),
            is_reachable=_is_reachable(self._caches, spec.rendering),
            wakes=serving.wakes,
            refused_env=find_refused_env(records, templates, policy, pool_roles(spec.rendering.deployment)),
        )
        if self._postpones(snapshot.owner.uid):
            return 0.0
        status = status_of(result, snapshot.before, self._now())
        reasons = {} if result.sized is None else {role.value: why for role, why in result.sized.reasons.items()}
        wanted = {} if result.sized is None else {role.value: count for role, count in result.sized.workers.items()}
        present = status_history(status, snapshot.live_pods, reasons, wanted)
        facts = facts_of(mapping(snapshot.raw.get("spec")), spec.rendering.record)
        self._announce(snapshot.key, self._histories.note(snapshot, present, facts, self._now().timestamp()))
        status_s = await self._statuses.write(snapshot, status)
        await self._write_events(snapshot, plan)
        await self._statuses.write_pools(snapshot, spec.rendering.deployment, plan.pools)
        history_s = await self._histories.write(snapshot, spec.rendering.deployment)
        return earliest((again_s, status_s, history_s, PROBLEM_S if written.problems else None))

    async def refuse(self, snapshot: Snapshot, refusal: RefusedSpec) -> None:
        """Report that a spec is not carried out and that none was before."""
        status = refused_status(refusal, snapshot.before, snapshot.generation, self._now())
        await self._statuses.write(snapshot, status)

    async def hold(self, snapshot: Snapshot, why: str) -> None:
        """Report that nothing is done, because the namespace cannot be read."""
        await self._statuses.write(snapshot, unreadable_status(why, snapshot.before, snapshot.generation, self._now()))

    async def stay_out(self, snapshot: Snapshot, other: str) -> None:
        """Report by an Event that another operator has the namespace; nothing else is written there."""
        why = f"the operator {other} has this namespace: a second one of its class does nothing here"
        await self._statuses.write_events(snapshot, [StatusEvent(True, "ClaimedElsewhere", why)])

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a deployment that is gone."""
        self._memories.pop(uid, None)
        self._histories.forget(uid)

    def forget_name(self, key: Key) -> None:
        """Drop the Events and the metrics of a name that no deployment has any more."""
        self._statuses.forget(key)

    async def _diagnose(
        self, snapshot: Snapshot, rendering: Rendering, plan: PassPlan
    ) -> tuple[tuple[PassProblem, ...], float | None]:
        """The causes that keep Pods back, and the seconds until they may change. Events are read only about Pods and
        Jobs whose own status gives no reason."""
        now = self._now()
        events, events_s = await self._events.about_pods(snapshot.live_pods, now)
        job = waiting_job(snapshot, plan.fetch)
        if job is not None:
            event = await self._events.about(job)
            events = events if event is None else {**events, uid_of(job): event}
            events_s = AGAIN_S
        claim = waiting_claim(snapshot, rendering.deployment)
        if claim is not None:
            event = await self._events.about(claim)
            events = events if event is None else {**events, uid_of(claim): event}
            events_s = earliest((events_s, AGAIN_S))
        progress, progress_s = await self._fetch_progress(snapshot, plan)
        scaler = idle_scaler(snapshot, now)
        held = sidecar_problem(snapshot, plan.fetch, now)
        late = (*find_ingress_problems(snapshot, now), *(entry for entry in (scaler, held) if entry is not None))
        former = self._former_failure(snapshot, plan)
        causes = diagnose(snapshot, plan.sets, rendering.deployment, plan.fetch, {**events, **progress}, now, former)
        return causes, earliest((events_s, progress_s, *(left_s for _, left_s in late if left_s > 0)))

    def _former_failure(self, snapshot: Snapshot, plan: PassPlan) -> FetchFailure | None:
        """How the former Job of the same fetch failed, before it began anew; None: unknown, or none failed."""
        uid, fetch = snapshot.owner.uid, plan.fetch
        memory = self._memories.get(uid, ReportMemory())
        given_up = memory.given_up if memory.given_up is not None and memory.given_up[0] == fetch.job else None
        if fetch.is_done:
            given_up = None
        elif fetch.failure:
            failure = last_failure(snapshot, fetch) or FetchFailure(fetch.failure, None, fetch.failed_at)
            given_up = (fetch.job, failure)
        self._memories[uid] = replace(memory, given_up=given_up)
        return None if given_up is None else given_up[1]

    async def _fetch_progress(
        self, snapshot: Snapshot, plan: PassPlan
    ) -> tuple[Mapping[str, ObjectEvent], float | None]:
        """The Event in which the newest fetching Pod says how far it is, by the Pod's uid."""
        pods = () if plan.fetch.is_done else fetching_pods(snapshot)
        if not pods:
            return {}, None
        event = await self._events.about(pods[-1])
        return {} if event is None else {uid_of(pods[-1]): event}, PROGRESS_S

    def _postpones(self, uid: str) -> bool:
        """Decide whether the status is left to the next pass, which sees the outcome of the writes since the last
        status. A status is never postponed twice in a row, because another writer may change an object as often as the
        operator does."""
        before, writes = self._memories.get(uid, ReportMemory()), self._applier.writes_to(uid)
        postpones = writes != before.writes and not before.was_postponed
        self._memories[uid] = replace(before, writes=writes, was_postponed=postpones)
        return postpones

    async def _write_events(self, snapshot: Snapshot, plan: PassPlan) -> None:
        uid = snapshot.owner.uid
        restored = [
            f"{name} was edited or deleted by somebody else and is back" for name in self._applier.take_restored(uid)
        ]
        await self._statuses.write_events(
            snapshot, [StatusEvent(False, "Restored", text, closes=True) for text in restored]
        )
        memory, replaced = self._memories[uid], plan.replacement.replaced
        self._memories[uid] = replace(memory, replaced=replaced)
        text = "the node of the only {} is being emptied: a second one is started"
        await self._statuses.write_events(
            snapshot,
            [
                StatusEvent(False, "SuccessorStarted", text.format(role), role)
                for role in sorted(replaced - memory.replaced)
            ],
        )


def _is_reachable(caches: Caches, rendering: Rendering) -> bool | None:
    """The field `is_reachable` of a PassResult, regardless of who made the objects."""
    gateway = gateway_name(rendering.deployment.metadata.name)
    wanted = next(desired for desired in rendering.standing if desired.resource == SERVICES and desired.name == gateway)
    live = caches[SERVICES].get(wanted.namespace, gateway)
    selector = mapping(wanted.body.get("spec")).get("selector")
    if live is None or mapping(live.get("spec")).get("selector") != selector:
        return False
    policies = [desired for desired in rendering.standing if desired.resource == POLICIES]
    return True if all(caches[POLICIES].get(policy.namespace, policy.name) for policy in policies) else None
