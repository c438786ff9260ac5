"""One pass over one LLMDeployment: from what is known to what is wanted, what is written and what is reported.

`Snapshot → SpecInForce → Serving → PoolSizes → PassPlan → WrittenPlan → PassResult`: each is a frozen value and follows
from the ones before it. A pass acts only on what it reads at its beginning; earlier passes do not matter. It stops at
the first sign that it knows too little (a Conflict, no answer) and is run again. A refusal of one object is reported
and keeps no other object back.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from baton_control.errors import ManifestError, NotAllowedError, UnsupportedError
from baton_control.names import Key
from baton_control.sizing.decision.scaling import Sizing
from baton_control.sizing.metrics import SizingMetrics
from baton_operator.kube.kinds import OPTIONAL
from baton_operator.kube.kube_api import KubeApi, Resource
from baton_operator.objects.cluster import Platform
from baton_operator.passes.apply import Applier
from baton_operator.passes.deployment_sizer import DeploymentSizer
from baton_operator.passes.observe import rollout_groups
from baton_operator.passes.pass_plan import plan_pass
from baton_operator.passes.pass_reporter import Announce, PassReporter, SpecInForce
from baton_operator.passes.plan_writer import PlanWriter
from baton_operator.passes.refused_spec import RefusedSpec
from baton_operator.passes.rendering import Inputs, Rendering, Renderings, inputs_of, last_good
from baton_operator.passes.role_labels import RoleLabels
from baton_operator.passes.serving import ServingReader, earliest
from baton_operator.passes.snapshot import Caches, Snapshot, take_snapshot
from baton_operator.telemetry import Telemetry

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Installation:
    """The settings of the installation for all passes."""

    platform: Callable[[], Platform]
    masters: Callable[[], Mapping[str, bytes]]
    """The operator's master keys as they are now: they rotate."""
    served: Callable[[str], frozenset[Resource]] = lambda namespace: frozenset(OPTIONAL)
    """The optional kinds that the API server has and that may be read in a namespace."""


class Reconciler:
    """Passes for all deployments. `now` is the wall clock, for what people read; `clock` is monotonic, for waiting."""

    def __init__(  # noqa: PLR0913 - one call site, keyword only: the sources and the clocks of all steps
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
        announce: Announce = lambda key, history: None,
    ) -> None:
        self._caches, self._installation, self._now, self._emptying = caches, installation, now, emptying
        """`emptying`: nodes that are being emptied; None: nodes cannot be read."""
        self._applier = Applier(api, caches)
        self._roles = RoleLabels(self._applier, telemetry, clock)
        self._renderings = Renderings()
        self._serving = ServingReader(telemetry, clock)
        self._sizer = DeploymentSizer(sizing, measured, now, asks_again=telemetry is not None)
        self._writer = PlanWriter(self._applier, self._roles)
        self._reporter = PassReporter(api, self._applier, caches, now, clock, announce)
        self._uids: dict[Key, str] = {}
        """The deployment of each name that a pass saw last: another one of the same name begins anew."""

    async def reconcile(self, key: Key) -> float | None:
        """One pass; returns in how many seconds the next is due; None: only after an event.

        Raises KubeError when the pass has to be repeated.
        """
        snapshot = take_snapshot(key, self._caches)
        self._forget_former(key, None if snapshot is None else snapshot.owner.uid)
        if snapshot is None:
            return None
        spec = self._spec_in_force(snapshot)
        if isinstance(spec, RefusedSpec):
            await self._reporter.refuse(snapshot, spec)
            return None
        rendering = spec.rendering
        serving = self._serving.read(snapshot, rendering.deployment)
        groups = rollout_groups(snapshot.sets, serving.routable, snapshot.pod_counts)
        sizes = self._sizer.size(snapshot, rendering, groups)
        plan = plan_pass(snapshot, rendering, serving, sizes, self._emptying(), self._now())
        written = await self._writer.write(snapshot, rendering, plan)
        self._roles.order(key, written.pods, serving.report)
        policy = self._installation.platform().pod_policy
        report_s = await self._reporter.report(snapshot, spec, serving, plan, written, policy)
        return earliest((serving.again_s, plan.again_s, written.again_s, report_s))

    async def hold(self, key: Key, why: str) -> None:
        """Report that nothing is done for a deployment, because its namespace cannot be read. Raises KubeError."""
        snapshot = take_snapshot(key, self._caches)
        if snapshot is not None:
            await self._reporter.hold(snapshot, why)

    async def stay_out(self, key: Key, other: str) -> None:
        """Report by an Event that another operator has the namespace; nothing else is written there."""
        snapshot = take_snapshot(key, self._caches)
        if snapshot is not None:
            await self._reporter.stay_out(snapshot, other)

    def _spec_in_force(self, snapshot: Snapshot) -> SpecInForce | RefusedSpec:
        """The newest spec, or the last good one while the newest is refused, or the refusal where none was good."""
        served = self._installation.served(snapshot.key.namespace)
        inputs = inputs_of(snapshot, self._installation.platform(), self._installation.masters(), served)
        newest = self._render(inputs)
        if isinstance(newest, Rendering):
            return SpecInForce(newest)
        log.info("%s: %s", snapshot.key, newest)
        good = last_good(inputs)
        former = self._renderings.last(snapshot.owner) if good is None else self._render(good)
        return SpecInForce(former, newest.as_problem) if isinstance(former, Rendering) else newest

    def _render(self, inputs: Inputs) -> Rendering | RefusedSpec:
        """The rendering of a spec, or its refusal."""
        try:
            return self._renderings.of(inputs)
        except NotAllowedError as error:
            return RefusedSpec("NotAllowed", error.problems)
        except ManifestError as error:
            return RefusedSpec("InvalidSpec", error.problems)
        except UnsupportedError as error:
            return RefusedSpec("Unsupported", (error.problem,))

    def _forget_former(self, key: Key, uid: str | None) -> None:
        """Drop what is remembered of a deployment that is gone; another one of the same name begins anew."""
        former = self._uids.pop(key, None)
        if uid is not None:
            self._uids[key] = uid
        if former is not None and former != uid:
            self._applier.forget(former)
            self._serving.forget(former)
            self._reporter.forget(former)
        if uid is None:
            self._reporter.forget_name(key)
            self._roles.forget(key)
            self._sizer.forget(key)
