"""Which workers of a deployment serve: as gateways report it, or as readiness suggests where no gateway reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from baton_control.names import gateway_name
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import OTHER_VERSION_S
from baton_operator.kube.object_fields import Manifest, mapping, mappings
from baton_operator.passes.roles import count_serving
from baton_operator.passes.snapshot import Snapshot
from baton_operator.passes.template_records import UPGRADE_ANNOTATION
from baton_operator.passes.worker_pods import Readiness
from baton_operator.telemetry import GatewayReport, RoutableCounts, Telemetry
from baton_wire.messages.values import Role

PAIRS_S = 1.0
"""Time to the next pass while a gateway may soon lack a pair of workers."""
OPERATOR_FLAG = "--operator="
"""The gateway's flag for its link to the operator."""
BELIEVED_S = 30.0
"""For this long after its start, the operator believes the last status where no gateway has reported yet."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Which workers serve, and what else gateways report."""

    report: GatewayReport | None
    """None: no gateway has reported lately."""
    routable: RoutableCounts | None
    """Workers that a rollout may count on; None: unknown."""
    doubtful: frozenset[tuple[Role, str]] = frozenset()
    """Templates with a worker that served a moment ago and is not ready now."""
    published: RoutableCounts | None = None
    """For the status alone, in place of unknown counts: workers that the last status called routable and that are still
    ready. None: the status needs no such counts, or is too old."""
    wakes: bool | None = None
    """True if a request can wake pools that sleep; None: unknown."""
    notes: tuple[str, ...] = ()
    """Sentences for the status about what is not known."""
    again_s: float | None = None
    """When the next pass may find something else; None: only after an event."""

    @property
    def linked(self) -> frozenset[tuple[Role, str]] | None:
        """Templates with a worker that a gateway has linked; None: unknown."""
        return None if self.report is None else self.report.linked

    @property
    def shown(self) -> RoutableCounts | None:
        """The routable workers that the status shows."""
        return self.routable if self.published is None else self.published


class ServingReader:
    """Reads for all deployments which workers serve. `telemetry` None: there are no links to gateways. `clock` is
    monotonic."""

    def __init__(self, telemetry: Telemetry | None, clock: Callable[[], float]) -> None:
        self._telemetry, self._clock = telemetry, clock
        self._readiness = Readiness()
        self._began = clock()

    def read(self, snapshot: Snapshot, deployment: LLMDeployment) -> Serving:
        if self._telemetry is None:
            return self._assume(snapshot)
        report = self._telemetry.report(snapshot.key, snapshot.owner.uid, deployment)
        if report is not None and report.other_version is not None:
            return self._of_another_release(snapshot, report, report.other_version)
        if _has_mute_gateways(snapshot, is_linked=report is not None):
            return self._of_another_release(snapshot, report, "they have no link to the operator")
        if report is None:
            return self._believe(snapshot)
        is_near_end = report.pairs is not None and report.pairs.may_lack_soon
        routable = report.routable
        if routable is not None:
            routable = count_serving(routable, snapshot.sets, snapshot.pods, report.flexible)
        again_s = earliest((PAIRS_S if is_near_end else None, report.linked_in_s))
        return Serving(report, routable, wakes=True, again_s=again_s)

    def forget(self, uid: str) -> None:
        """Drop what is known of a deployment that is gone."""
        self._readiness.forget(uid)

    def _of_another_release(self, snapshot: Snapshot, report: GatewayReport | None, why: str) -> Serving:
        """While a gateway of another release cannot report: workers that stay ready serve, for the status alone. A
        rollout stops no worker that such a gateway may use."""
        assumed = self._assume(snapshot)
        note = (
            f"gateways of another release cannot report here ({why}): readiness says which workers "
            f"serve, and no pool shrinks; the annotation {UPGRADE_ANNOTATION} rolls out the images of this release"
        )
        again_s = OTHER_VERSION_S if assumed.again_s is None else min(assumed.again_s, OTHER_VERSION_S)
        return replace(
            assumed, report=report, routable=None, published=assumed.routable, notes=(note,), again_s=again_s
        )

    def _assume(self, snapshot: Snapshot) -> Serving:
        """Without links to gateways: a worker that stays ready serves, while any gateway is ready."""
        now = self._clock()
        assumed = self._readiness.routable(snapshot.owner.uid, snapshot.pods, _published(snapshot), now)
        again_s = None if assumed.again_at is None else max(assumed.again_at - now, 0.1)
        routable = assumed.routable if snapshot.gateways_ready else None
        return Serving(None, routable, assumed.doubtful, wakes=False, again_s=again_s)

    def _believe(self, snapshot: Snapshot) -> Serving:
        """While no gateway has reported: nothing is known, and a new process shows what the status said last. A restart
        of the operator changes nothing about what is served."""
        left_s = self._began + BELIEVED_S - self._clock()
        pools = [pool for pool in (snapshot.before.prefill, snapshot.before.decode) if pool is not None]
        was_known = bool(pools) and all(pool.routable is not None for pool in pools)
        slept = any(
            condition.reason == "ScaledToZero" and condition.status == "True"
            for condition in snapshot.before.conditions
        )
        wakes = True if slept and left_s > 0 else None
        if left_s <= 0 or not was_known:
            return Serving(None, None, wakes=wakes)
        ready = {key: counts.ready for key, counts in snapshot.pod_counts.items()}
        published = {key: min(count, ready.get(key, 0)) for key, count in _published(snapshot).items()}
        return Serving(None, None, published=published, wakes=wakes, again_s=left_s)


def _has_mute_gateways(snapshot: Snapshot, *, is_linked: bool) -> bool:
    """True if gateways run that were made without a link to the operator: those of the current record or of the live
    template while none is linked, or those of an older record until the last one has gone."""
    mute = {stored.number: _is_mute(stored.record.rendered[Role.GATEWAY].pod) for stored in snapshot.records}
    if not any(mute.values()):
        return False
    gateway = snapshot.live_sets.get(gateway_name(snapshot.key.name), {})
    live = mapping(mapping(gateway.get("spec")).get("template"))
    if mute[max(mute)] or (live and _is_mute(live)):  # a former template may be held for a time
        return not is_linked
    status = mapping(gateway.get("status"))
    return status.get("updatedReplicas") != status.get("replicas") or bool(snapshot.leaving_gateways)


def _is_mute(template: Manifest) -> bool:
    pod = mapping(template.get("spec"))
    commands = [container.get("command") for container in mappings(pod.get("containers"))]
    words = [str(word) for command in commands if isinstance(command, list) for word in command]
    return not any(word.startswith(OPERATOR_FLAG) for word in words)


def earliest(waits_s: Iterable[float | None]) -> float | None:
    """The shortest of several waits; None: none is due without an event."""
    return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)


def _published(snapshot: Snapshot) -> dict[tuple[Role, str], int]:
    """Routable workers as the status has them, by role and template hash."""
    pools = ((Role.PREFILL, snapshot.before.prefill), (Role.DECODE, snapshot.before.decode))
    return {
        (role, revision.revision): revision.routable or 0
        for role, pool in pools
        for revision in (pool.revisions if pool is not None else ())
    }
